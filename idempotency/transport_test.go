package idempotency_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
)

// attempt is what a scripted origin got.
type attempt struct {
	at   time.Duration // since the origin was made
	key  string
	body string
}

// reply is what a scripted origin answers: a status, with Retry-After if after is
// not "", or an error.
type reply struct {
	status int
	after  string
	err    error
}

// origin is a http.RoundTripper that answers as it was told, the last reply
// again and again.
type origin struct {
	replies []reply
	start   time.Time

	mu     sync.Mutex
	got    []attempt
	bodies []*watched // of its answers
}

func newOrigin(replies ...reply) *origin { return &origin{replies: replies, start: time.Now()} }

// watched is a body that knows whether it was closed.
type watched struct {
	io.Reader
	closed bool
}

func (w *watched) Close() error { w.closed = true; return nil }

func (o *origin) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	reply := o.replies[min(len(o.got), len(o.replies)-1)]
	o.got = append(o.got, attempt{time.Since(o.start), r.Header.Get("Idempotency-Key"), string(body)})
	if reply.err != nil {
		return nil, reply.err
	}
	w := &watched{Reader: strings.NewReader("text")}
	o.bodies = append(o.bodies, w)
	res := &http.Response{StatusCode: reply.status, Header: http.Header{}, Body: w, ContentLength: 4, Request: r}
	if reply.after != "" {
		res.Header.Set("Retry-After", reply.after)
	}
	return res, nil
}

func (o *origin) attempts() []attempt {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.got)
}

func newTransport(t *testing.T, base http.RoundTripper, o *idempotency.TransportOptions) *idempotency.Transport {
	t.Helper()
	var options idempotency.TransportOptions
	if o != nil {
		options = *o
	}
	options.Base = base
	transport, err := idempotency.NewTransport(&options)
	if err != nil {
		t.Fatal(err)
	}
	return transport
}

// newPost makes a request with a body that can be made anew.
func newPost(ctx context.Context, t *testing.T) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://origin.example/charges", strings.NewReader("amount=700"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var errCut = errors.New("connection reset by peer")

// TestTransportRetries: what is safe to retry is, after as long as the answer
// asked for or the backoff says; what is not safe is not.
func TestTransportRetries(t *testing.T) {
	const ms = time.Millisecond
	created := reply{status: 201}
	date := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for name, test := range map[string]struct {
		first    func() reply
		attempts int
		// The last attempt comes between least and most.
		least, most time.Duration
	}{
		"success":                     {func() reply { return created }, 1, 0, 0},
		"no answer":                   {func() reply { return reply{err: errCut} }, 2, 50 * ms, 101 * ms},
		"a deadline of the network's": {func() reply { return reply{err: &net.OpError{Op: "dial", Err: context.DeadlineExceeded}} }, 2, 50 * ms, 101 * ms},
		"an end in the middle":        {func() reply { return reply{err: io.ErrUnexpectedEOF} }, 2, 50 * ms, 101 * ms},
		"an unproven certificate":     {func() reply { return reply{err: &tls.CertificateVerificationError{Err: errCut}} }, 1, 0, 0},
		"409, in 2 s":                 {func() reply { return reply{status: 409, after: "2"} }, 2, 2000 * ms, 2051 * ms},
		"429, in 2 s":                 {func() reply { return reply{status: 429, after: "2"} }, 2, 2000 * ms, 2051 * ms},
		"503, in 2 s":                 {func() reply { return reply{status: 503, after: "2"} }, 2, 2000 * ms, 2051 * ms},
		"503, at once":                {func() reply { return reply{status: 503, after: "0"} }, 2, 50 * ms, 101 * ms},
		"503, on a date":              {func() reply { return reply{status: 503, after: date(7 * time.Second)} }, 2, 7000 * ms, 7051 * ms},
		"503, on a date gone by":      {func() reply { return reply{status: 503, after: date(-time.Hour)} }, 2, 50 * ms, 101 * ms},
		"503, in 30 s":                {func() reply { return reply{status: 503, after: "30"} }, 2, 30000 * ms, 30051 * ms},
		"503, in 31 s":                {func() reply { return reply{status: 503, after: "31"} }, 1, 0, 0},
		"503, on a date far away":     {func() reply { return reply{status: 503, after: date(time.Hour)} }, 1, 0, 0},
		"503, some day":               {func() reply { return reply{status: 503, after: "soon"} }, 1, 0, 0},
		"503, in -1 s":                {func() reply { return reply{status: 503, after: "-1"} }, 1, 0, 0},
		"503, in 1.5 s":               {func() reply { return reply{status: 503, after: "1.5"} }, 1, 0, 0},
		"409 for good":                {func() reply { return reply{status: 409} }, 1, 0, 0},
		"429 for good":                {func() reply { return reply{status: 429} }, 1, 0, 0},
		"503 for good":                {func() reply { return reply{status: 503} }, 1, 0, 0},
		"another use of the key":      {func() reply { return reply{status: 422, after: "1"} }, 1, 0, 0},
		"done, not kept":              {func() reply { return reply{status: 410, after: "1"} }, 1, 0, 0},
		"an error of the application": {func() reply { return reply{status: 500, after: "1"} }, 1, 0, 0},
		"a bad gateway":               {func() reply { return reply{status: 502, after: "1"} }, 1, 0, 0},
		"a redirection":               {func() reply { return reply{status: 307, after: "1"} }, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := test.first()
				o := newOrigin(first, created)
				res, err := newTransport(t, o, nil).RoundTrip(newPost(t.Context(), t))
				got := o.attempts()
				if len(got) != test.attempts {
					t.Fatalf("%d attempts; want %d", len(got), test.attempts)
				}
				last := got[len(got)-1]
				if last.at < test.least || last.at > test.most {
					t.Errorf("the last attempt came after %v; want %v to %v", last.at, test.least, test.most)
				}
				for _, a := range got {
					if a.body != "amount=700" || len(a.key) != 28 || a.key != got[0].key {
						t.Errorf("an attempt with %+v; the first was %+v", a, got[0])
					}
				}
				want := created
				if test.attempts == 1 {
					want = first
				}
				if !errors.Is(err, want.err) || want.err == nil && (err != nil || res.StatusCode != want.status) {
					t.Fatalf("%v, %v; want %+v", res, err, want)
				}
				if want.err == nil {
					text, _ := io.ReadAll(res.Body)
					if string(text) != "text" {
						t.Errorf("the answer is %q", text)
					}
					_ = res.Body.Close()
				}
				for _, body := range o.bodies {
					if !body.closed {
						t.Error("the body of an answer was not closed")
					}
				}
			})
		})
	}
}

// TestTransportBacksOff: each pause is about twice as long as the one before, and
// after the last attempt the caller gets what that got.
func TestTransportBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(reply{err: errCut})
		transport := newTransport(t, o, &idempotency.TransportOptions{Attempts: 7, Backoff: time.Second, MaxBackoff: 8 * time.Second})
		res, err := transport.RoundTrip(newPost(t.Context(), t))
		if res != nil || err != errCut {
			t.Errorf("%v, %v", res, err)
		}
		got := o.attempts()
		if len(got) != 7 {
			t.Fatalf("%d attempts", len(got))
		}
		for i, seconds := range []int{1, 2, 4, 8, 8, 8} {
			pause, backoff := got[i+1].at-got[i].at, time.Duration(seconds)*time.Second
			if pause < backoff/2 || pause > backoff {
				t.Errorf("pause %d took %v; want %v to %v", i, pause, backoff/2, backoff)
			}
		}
	})
}

// TestTransportGivesUpWithItsContext: nothing is sent after the caller's context
// has ended, and a wait that would outlive it is not begun.
func TestTransportGivesUpWithItsContext(t *testing.T) {
	left := errors.New("the user left")
	t.Run("canceled while it waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(left) })
			o := newOrigin(reply{status: 409, after: "5"})
			res, err := newTransport(t, o, nil).RoundTrip(newPost(ctx, t))
			if res != nil || err != left || len(o.attempts()) != 1 || time.Since(o.start) != time.Second {
				t.Errorf("%v, %v after %d attempts and %v", res, err, len(o.attempts()), time.Since(o.start))
			}
		})
	})
	t.Run("canceled in an attempt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			tries := 0
			base := tripper(func(*http.Request) (*http.Response, error) {
				tries++
				cancel()
				return nil, ctx.Err()
			})
			if _, err := newTransport(t, base, nil).RoundTrip(newPost(ctx, t)); !errors.Is(err, context.Canceled) || tries != 1 {
				t.Errorf("%v after %d attempts", err, tries)
			}
		})
	})
	t.Run("a deadline before the next attempt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			o := newOrigin(reply{status: 409, after: "5"})
			res, err := newTransport(t, o, nil).RoundTrip(newPost(ctx, t))
			if err != nil || res.StatusCode != 409 || o.bodies[0].closed || time.Since(o.start) != 0 {
				t.Errorf("%v, %v after %v; want the 409 at once, readable", res, err, time.Since(o.start))
			}
		})
	})
}

// tripper is a http.RoundTripper made of a function.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestTransportBudget: retries are at most a share of the requests in the long
// run, with ten in hand.
func TestTransportBudget(t *testing.T) {
	for _, test := range []struct {
		budget float64
		want   int // attempts of 100 requests that all fail
	}{
		// A budget that is full does not grow, so a little of the share is lost
		// at the beginning.
		{0.2, 100 + 10 + 19},
		{0.5, 100 + 10 + 49},
		{1, 500},
		{3, 500},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOrigin(reply{err: errCut})
			transport := newTransport(t, o, &idempotency.TransportOptions{Budget: test.budget})
			for range 100 {
				if _, err := transport.RoundTrip(newPost(t.Context(), t)); err != errCut {
					t.Fatal(err)
				}
			}
			if got := len(o.attempts()); got < test.want-1 || got > test.want+1 {
				t.Errorf("a budget of %v: %d attempts; want about %d", test.budget, got, test.want)
			}
		})
	}
}

// TestTransportBodies: a body is sent again whole, or the request is not.
func TestTransportBodies(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // the limit of 1 MiB
	type source struct {
		request  func(r *http.Request, text string) *watched
		attempts int
	}
	plain := func(r *http.Request, text string) *watched {
		w := &watched{Reader: strings.NewReader(text)}
		r.Body, r.GetBody, r.ContentLength = w, nil, -1
		return w
	}
	sources := map[string]struct {
		source
		text string
	}{
		"made anew": {source{func(r *http.Request, text string) *watched {
			w := &watched{Reader: strings.NewReader(text)}
			r.Body = w
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
			return w
		}, 2}, string(big) + "and more"},
		"cannot be made anew": {source{func(r *http.Request, text string) *watched {
			w := &watched{Reader: strings.NewReader(text)}
			r.Body = w
			r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("the file is gone") }
			return w
		}, 1}, "text"},
		"kept":         {source{plain, 2}, "text"},
		"kept, empty":  {source{plain, 2}, ""},
		"at the limit": {source{plain, 2}, string(big)},
		"too long":     {source{plain, 1}, string(big) + "!"},
		"none": {source{func(r *http.Request, _ string) *watched {
			r.Body, r.GetBody, r.ContentLength = nil, nil, 0
			return &watched{closed: true}
		}, 2}, ""},
		"http.NoBody": {source{func(r *http.Request, _ string) *watched {
			r.Body, r.GetBody, r.ContentLength = http.NoBody, nil, 0
			return &watched{closed: true}
		}, 2}, ""},
	}
	for name, test := range sources {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPost(t.Context(), t)
				sent := test.request(r, test.text)
				o := newOrigin(reply{status: 503, after: "1"}, reply{status: 201})
				res, err := newTransport(t, o, nil).RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				if want := []int{0, 503, 201}[test.attempts]; res.StatusCode != want || len(o.attempts()) != test.attempts {
					t.Errorf("%d after %d attempts; want %d after %d", res.StatusCode, len(o.attempts()), want, test.attempts)
				}
				for i, a := range o.attempts() {
					if a.body != test.text {
						t.Errorf("attempt %d sent %d bytes; want %d", i, len(a.body), len(test.text))
					}
				}
				if !sent.closed {
					t.Error("the request's body was not closed")
				}
				if o.bodies[len(o.bodies)-1].closed {
					t.Error("the answer that was returned is closed")
				}
			})
		})
	}
	t.Run("one that breaks off", func(t *testing.T) {
		r := newPost(t.Context(), t)
		w := &watched{Reader: io.MultiReader(strings.NewReader("half"), broken{})}
		r.Body, r.GetBody = w, nil
		o := newOrigin(reply{status: 201})
		if _, err := newTransport(t, o, nil).RoundTrip(r); !errors.Is(err, errCut) || len(o.attempts()) != 0 || !w.closed {
			t.Errorf("%v after %d attempts; closed: %v", err, len(o.attempts()), w.closed)
		}
	})
}

// broken is a reader that fails.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errCut }

// TestTransportKeys: a request of an unsafe method has a key, its own or ours.
func TestTransportKeys(t *testing.T) {
	o := newOrigin(reply{status: 201})
	n := 0
	numbered := func(*http.Request) string { n++; return fmt.Sprintf(`order "%d" \`, n) }
	transport := newTransport(t, o, &idempotency.TransportOptions{Key: numbered})
	for _, test := range []struct {
		method string
		header http.Header
		want   string
	}{
		{http.MethodPost, nil, `"order \"1\" \\"`},
		{http.MethodPut, nil, `"order \"2\" \\"`},
		{http.MethodPatch, nil, `"order \"3\" \\"`},
		{http.MethodDelete, nil, `"order \"4\" \\"`},
		{"PURGE", nil, `"order \"5\" \\"`},
		{http.MethodGet, nil, ""},
		{"", nil, ""},
		{http.MethodHead, nil, ""},
		{http.MethodOptions, nil, ""},
		{http.MethodPost, http.Header{"Idempotency-Key": {`"mine"`}}, `"mine"`},
		{http.MethodGet, http.Header{"Idempotency-Key": {`"mine"`}}, `"mine"`},
		{http.MethodPost, http.Header{"X-Idempotency-Key": {"mine"}}, ""},
		{http.MethodPost, http.Header{"Idempotency-Key": {""}}, `"order \"6\" \\"`},
	} {
		r := newPost(t.Context(), t)
		r.Method = test.method
		if test.header != nil {
			r.Header = test.header.Clone()
		}
		before := r.Header.Clone()
		if _, err := transport.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		got := o.attempts()
		if key := got[len(got)-1].key; key != test.want {
			t.Errorf("%s with %v has the key %s; want %s", test.method, test.header, key, test.want)
		}
		if fmt.Sprint(r.Header) != fmt.Sprint(before) {
			t.Errorf("the caller's request was changed from %v to %v", before, r.Header)
		}
	}
	for _, bad := range []string{"", strings.Repeat("k", 256), "new\nline", "clé", "\x7f"} {
		transport := newTransport(t, o, &idempotency.TransportOptions{Key: func(*http.Request) string { return bad }})
		r := newPost(t.Context(), t)
		w := &watched{Reader: strings.NewReader("text")}
		r.Body = w
		before := len(o.attempts())
		if _, err := transport.RoundTrip(r); err == nil || !w.closed || len(o.attempts()) != before {
			t.Errorf("the key %q: %v; closed: %v", bad, err, w.closed)
		}
	}
	// Random keys differ.
	keys := map[string]bool{}
	random := newTransport(t, o, nil)
	for range 100 {
		if _, err := random.RoundTrip(newPost(t.Context(), t)); err != nil {
			t.Fatal(err)
		}
		got := o.attempts()
		keys[got[len(got)-1].key] = true
	}
	if len(keys) != 100 {
		t.Errorf("%d keys for 100 requests", len(keys))
	}
}

func TestTransportOptionsAreValidated(t *testing.T) {
	for name, o := range map[string]idempotency.TransportOptions{
		"Attempts":   {Attempts: -1},
		"Backoff":    {Backoff: -1},
		"MaxBackoff": {Backoff: time.Second, MaxBackoff: time.Millisecond},
		"Budget":     {Budget: -0.1},
		"MaxBody":    {MaxBody: -1},
	} {
		if _, err := idempotency.NewTransport(&o); err == nil || !strings.Contains(err.Error(), "TransportOptions."+strings.TrimPrefix(name, "Max")) && !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A long backoff lifts the limit with it.
	if _, err := idempotency.NewTransport(&idempotency.TransportOptions{Backoff: time.Hour}); err != nil {
		t.Error(err)
	}
}
