package retry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestTransportSaysWhyItDoesNotReadOn: the error of an answer that breaks off for good wraps that of
// the connection, says why, and stays.
func TestTransportSaysWhyItDoesNotReadOn(t *testing.T) {
	answer := func(status int, text string, fields ...string) *http.Response {
		h := http.Header{"Content-Type": {"text/plain"}}
		for i := 0; i < len(fields); i += 2 {
			h.Set(fields[i], fields[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, ContentLength: int64(len(text)), Body: io.NopCloser(strings.NewReader(text))}
	}
	const replayed = "Idempotent-Replayed"
	for name, test := range map[string]struct {
		again    func() (*http.Response, error)
		options  retry.Options
		deadline time.Duration
		want     string
		sent     int
	}{
		"another text":   {again: func() (*http.Response, error) { return answer(200, "abcdefghij", replayed, "true"), nil }, want: "its first 4 bytes differ", sent: 2},
		"another length": {again: func() (*http.Response, error) { return answer(200, "0123456789a", replayed, "true"), nil }, want: "it has 11 bytes, and the first had 10", sent: 2},
		"another type": {again: func() (*http.Response, error) {
			return answer(200, "0123456789", replayed, "true", "Content-Type", "text/html"), nil
		}, want: "its Content-Type differs", sent: 2},
		"another coding": {again: func() (*http.Response, error) {
			return answer(200, "0123456789", replayed, "true", "Content-Encoding", "br"), nil
		}, want: "its Content-Encoding differs", sent: 2},
		"another status":    {again: func() (*http.Response, error) { return answer(201, "0123456789", replayed, "true"), nil }, want: "the retry was answered 201, and the first try 200", sent: 2},
		"a new run":         {again: func() (*http.Response, error) { return answer(200, "0123456789"), nil }, want: "which is not a replay", sent: 2},
		"not kept":          {again: func() (*http.Response, error) { return answer(410, ""), nil }, want: "answered 410", sent: 2},
		"busy all the time": {again: func() (*http.Response, error) { return answer(409, "", "Retry-After", "2"), nil }, want: "answered 409, and all tries were used (Options.MaxTries)", sent: 5},
		"away all the time": {again: func() (*http.Response, error) { return answer(503, "", "Retry-After", "2"), nil }, want: "answered 503, and all tries", sent: 5},
		"no answer":         {again: func() (*http.Response, error) { return nil, errCut }, want: "all tries were used (Options.MaxTries): unexpected EOF; the last retry got connection reset by peer", sent: 5},
		"the last try":      {options: retry.Options{MaxTries: 1}, want: "all tries", sent: 1},
		"no budget": {
			again:   func() (*http.Response, error) { return answer(503, "", "Retry-After", "2"), nil },
			options: retry.Options{MaxTries: 100}, want: "the budget of retries was used up (Options.Budget)", sent: 11,
		},
		"no time": {
			again:    func() (*http.Response, error) { return answer(409, "", "Retry-After", "2"), nil },
			deadline: 3 * time.Second, want: "the context would end before the next try", sent: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				if test.deadline > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), test.deadline)
				}
				defer cancel()
				sent := 0
				tr := newTransport(t, tripper(func(r *http.Request) (*http.Response, error) {
					if sent++; sent > 1 {
						return test.again()
					}
					first := answer(200, "0123456789")
					first.Body = io.NopCloser(brokenBody{strings.NewReader("0123")})
					return first, nil
				}), &test.options)
				res, err := tr.RoundTrip(newPost(ctx, t))
				testkit.Must(t, err)
				got, err := io.ReadAll(res.Body)
				if string(got) != "0123" || !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), test.want) || sent != test.sent {
					t.Errorf("%q, %v after %d tries; want %q after %d", got, err, sent, test.want, test.sent)
				}
				if n, later := res.Body.Read(make([]byte, 1)); n != 0 || later == nil || later.Error() != err.Error() || sent != test.sent {
					t.Errorf("the next read got %d bytes, %v, after %d tries", n, later, sent)
				}
			})
		})
	}
}

// TestTransportStopsReadingOn: a wait for the rest of an answer ends when the caller closes the
// answer, and when its context ends.
func TestTransportStopsReadingOn(t *testing.T) {
	left := errors.New("the user left")
	for name, stop := range map[string]func(*http.Response, context.CancelCauseFunc){
		"closed":   func(res *http.Response, _ context.CancelCauseFunc) { _ = res.Body.Close() },
		"canceled": func(_ *http.Response, cancel context.CancelCauseFunc) { cancel(left) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				o := newOrigin(reply{status: 409, after: "20"})
				sent := 0
				tr := newTransport(t, tripper(func(r *http.Request) (*http.Response, error) {
					if sent++; sent > 1 {
						return o.RoundTrip(r)
					}
					return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(brokenBody{strings.NewReader("0123")})}, nil
				}), nil)
				res, err := tr.RoundTrip(newPost(ctx, t))
				testkit.Must(t, err)
				began := time.Now()
				time.AfterFunc(5*time.Second, func() { stop(res, cancel) })
				got, err := io.ReadAll(res.Body)
				if string(got) != "0123" || err == nil || name == "canceled" && err != left || sent != 2 || time.Since(began) != 5*time.Second {
					t.Errorf("%q, %v after %d tries and %v", got, err, sent, time.Since(began))
				}
				if !o.bodies[0].closed {
					t.Error("the refusal's body was not closed")
				}
			})
		})
	}
}

// brokenBody is a body that breaks off after its text.
type brokenBody struct{ io.Reader }

func (b brokenBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// TestTransportFetchesABrokenAnswerAgain: the reader gets the whole answer, once; and an
// error if the server has another one.
func TestTransportFetchesABrokenAnswerAgain(t *testing.T) {
	const whole = "0123456789"
	replayed := http.Header{"Idempotent-Replayed": {"true"}}
	type answer struct {
		header http.Header
		text   string
		broken bool
	}
	for name, test := range map[string]struct {
		answers []answer
		want    string
		fails   bool
	}{
		"once":              {[]answer{{nil, whole[:4], true}, {replayed, whole, false}}, whole, false},
		"twice":             {[]answer{{nil, whole[:4], true}, {replayed, whole[:7], true}, {replayed, whole, false}}, whole, false},
		"before anything":   {[]answer{{nil, "", true}, {replayed, whole, false}}, whole, false},
		"at its end":        {[]answer{{nil, whole, true}, {replayed, whole, false}}, whole, false},
		"no replay":         {[]answer{{nil, whole[:4], true}, {nil, whole, false}}, whole[:4], true},
		"another answer":    {[]answer{{nil, whole[:4], true}, {replayed, "abcdefghij", false}}, whole[:4], true},
		"a shorter answer":  {[]answer{{nil, whole[:4], true}, {replayed, "012", false}}, whole[:4], true},
		"again and again":   {[]answer{{nil, whole[:4], true}, {replayed, whole[:4], true}}, whole[:4], true},
		"nothing is broken": {[]answer{{nil, whole, false}}, whole, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			var keys []string
			tr := newTransport(t, tripper(func(r *http.Request) (*http.Response, error) {
				a := test.answers[min(n, len(test.answers)-1)]
				n++
				keys = append(keys, r.Header.Get("Idempotency-Key"))
				body := io.Reader(strings.NewReader(a.text))
				if a.broken {
					body = brokenBody{body}
				}
				h := a.header
				if h == nil {
					h = http.Header{}
				}
				return &http.Response{StatusCode: 201, Header: h, Body: io.NopCloser(body), Request: r}, nil
			}), nil)
			r, _ := http.NewRequest("POST", "http://a", strings.NewReader("x"))
			res, err := tr.RoundTrip(r)
			testkit.Must(t, err)
			got, err := io.ReadAll(res.Body)
			if string(got) != test.want || (err != nil) != test.fails || n > 5 {
				t.Errorf("%s: read %q, %v, after %d requests", name, got, err, n)
			}
			for _, key := range keys {
				if key != keys[0] {
					t.Errorf("%s: sent with the keys %q", name, keys)
				}
			}
		})
	}
}

// TestTransportDoesNotFetchAClosedAnswer: a body that was closed is not fetched again,
// however it is read after that.
func TestTransportDoesNotFetchAClosedAnswer(t *testing.T) {
	n := 0
	entered, open := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		w.WriteHeader(201)
		_ = http.NewResponseController(w).Flush()
		close(entered)
		<-open
	}))
	defer server.Close()
	defer close(open)
	tr := newTransport(t, nil, nil)
	r, _ := http.NewRequest("POST", server.URL, strings.NewReader("x"))
	res, err := tr.RoundTrip(r)
	testkit.Must(t, err)
	<-entered
	read := make(chan error)
	go func() {
		_, err := io.ReadAll(res.Body)
		read <- err
	}()
	testkit.Check(t, res.Body.Close())
	if err := <-read; err == nil {
		t.Error("a body that was closed has an end")
	}
	if _, err := res.Body.Read(make([]byte, 1)); err == nil || n != 1 {
		t.Errorf("the request was sent %d times; %v", n, err)
	}
}

// TestTransportClosesBodiesThatItDoesNotSend: if the budget does not allow another try, no body
// of the request stays open.
func TestTransportClosesBodiesThatItDoesNotSend(t *testing.T) {
	synctest.Test(t, closesBodies)
}

func closesBodies(t *testing.T) {
	open := 0
	body := func() (io.ReadCloser, error) {
		open++
		return closer{strings.NewReader("x"), func() { open-- }}, nil
	}
	tr := newTransport(t, tripper(func(r *http.Request) (*http.Response, error) {
		_ = r.Body.Close()
		h := http.Header{"Idempotent-Replayed": {"true"}}
		return &http.Response{StatusCode: 200, Header: h, Body: io.NopCloser(brokenBody{strings.NewReader("")})}, nil
	}), &retry.Options{MaxTries: 100})
	r := httptest.NewRequest(http.MethodPost, "http://example.com/", nil)
	r.Body, _ = body()
	r.GetBody = body
	w, err := tr.RoundTrip(r)
	testkit.Must(t, err)
	if _, err := io.ReadAll(w.Body); err == nil {
		t.Error("the answer is whole")
	}
	if open != 0 {
		t.Errorf("%d bodies are open", open)
	}
}

// closer is a body that says when it is closed.
type closer struct {
	io.Reader
	close func()
}

func (c closer) Close() error {
	c.close()
	return nil
}
