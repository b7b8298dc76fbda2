package retry_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
