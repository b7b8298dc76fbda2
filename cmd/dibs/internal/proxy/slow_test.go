package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// keyed returns a request with a key.
func keyed(t *testing.T, ctx context.Context, url, path, key string, body io.Reader) *http.Request {
	r := testkit.Request(ctx, t, http.MethodPost, url+path, body)
	r.Header.Set("Idempotency-Key", key)
	return r
}

// untilSettled sends a request again while its key is held, and returns what answers it then.
func untilSettled(t *testing.T, url, path, key string) *http.Response {
	t.Helper()
	var res *http.Response
	testkit.Eventually(t, "the key is settled", func() (ok bool) {
		var err error
		if res, err = http.DefaultTransport.RoundTrip(keyed(t, t.Context(), url, path, key, nil)); err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res.StatusCode != http.StatusConflict
	})
	return res
}

// TestClientsThatDoNotRead: a client that does not read a long answer does not keep its key, with
// HTTP/1.1 and HTTP/2, even if its connection takes nothing more. The retry is told that the answer
// was not kept, and nothing runs twice.
func TestClientsThatDoNotRead(t *testing.T) {
	began := make(chan struct{}, 100)
	up := origin(t, func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		if r.URL.Path == "/stream" {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusEarlyHints)
		}
		part := make([]byte, 1<<20)
		for range 64 {
			w.Write(part)
		}
	})
	p := start(t, up, "body-timeout: 50ms\n")
	open := func(tr *http.Transport, path, key string) {
		if res, err := tr.RoundTrip(keyed(t, t.Context(), p.url, path, key, nil)); err == nil {
			t.Cleanup(func() { res.Body.Close() })
		}
	}
	clients := map[string]func(path, key string){
		"http1": func(path, key string) {
			raw(t, p.url, "POST "+path+" HTTP/1.1\r\nHost: "+strings.TrimPrefix(p.url, "http://")+"\r\nContent-Length: 0\r\nIdempotency-Key: "+key+"\r\n\r\n")
		},
		"http2": func(path, key string) { open(testkit.HTTP2(t, 1<<20), path, key) },
		"deaf":  func(path, key string) { open(testkit.Deaf(t), path, key) },
	}
	for name, client := range clients {
		for _, path := range []string{"/", "/stream"} {
			key := name + strings.TrimPrefix(path, "/")
			client(path, key)
			<-began
			if res := untilSettled(t, p.url, path, key); res.StatusCode != http.StatusGone {
				t.Errorf("%s, %s: the retry is answered %d", name, path, res.StatusCode)
			}
		}
	}
	if n := len(began); n > 0 {
		t.Errorf("%d requests ran twice", n)
	}
	testkit.Eventually(t, "the log says that a client was too slow", func() bool {
		return strings.Contains(p.logs.String(), idempotency.ErrSlowClient.Error())
	})
	if log := p.logs.String(); strings.Contains(log, "the store fails") {
		t.Errorf("the log is %s", log)
	}
}

// TestClientsThatSendSlowly: clients whose body does not come keep no other client out, however many
// they are, with HTTP/1.1 and HTTP/2.
func TestClientsThatSendSlowly(t *testing.T) {
	up := origin(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	p := start(t, up, "max-concurrent: 2\n")
	var ends []func() string
	for i := range 3 {
		c, r := raw(t, p.url, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: one-%d\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n", i))
		if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, " 100 ") { // it is being read
			t.Fatalf("%q, %v", line, err)
		}
		r.ReadString('\n')
		io.WriteString(c, "x")
		ends = append(ends, func() string {
			io.WriteString(c, "yz")
			res, body := answerOf(t, r)
			if res.StatusCode == http.StatusContinue { // the origin's
				_, body = answerOf(t, r)
			}
			return body
		})

		asked, answered := make(chan struct{}), make(chan string, 1)
		body, w := io.Pipe()
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(asked) }})
		request := keyed(t, ctx, p.url, "/", fmt.Sprint("two-", i), body)
		request.Header.Set("Expect", "100-continue")
		tr := testkit.HTTP2(t, 1<<20)
		go func() {
			defer close(answered)
			res, err := tr.RoundTrip(request)
			if err != nil {
				t.Error(err)
				return
			}
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			answered <- string(text)
		}()
		<-asked
		io.WriteString(w, "x")
		ends = append(ends, func() string {
			io.WriteString(w, "yz")
			w.Close()
			return <-answered
		})
	}
	for i := range 3 {
		if res, body := send(t, p.url, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k%d\r\nContent-Length: 1\r\n\r\na", i)); res.StatusCode != 200 {
			t.Errorf("another client is answered %d %s", res.StatusCode, body)
		}
	}
	for _, end := range ends {
		if got := end(); got != "xyz" {
			t.Errorf("a slow client is answered %q", got)
		}
	}
}
