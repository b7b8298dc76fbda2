package retry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// received is what a scripted origin got of one try.
type received struct {
	at   time.Duration // since the origin was made
	key  string
	x    bool // X-Idempotency-Key was there
	body string
}

// reply is what a scripted origin answers: a status, with Retry-After if after is
// not "" or if afterDate, which counts from date, is not 0, or an error. If it is cut, half of its
// body is missing.
type reply struct {
	status    int
	after     string
	afterDate time.Duration
	date      time.Time
	replayed  bool
	cut       bool
	err       error
}

// origin is a http.RoundTripper with scripted replies. It repeats the last one
// again and again.
type origin struct {
	replies []reply
	start   time.Time

	mu     sync.Mutex
	got    []received
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
	_, x := r.Header["X-Idempotency-Key"]
	o.got = append(o.got, received{time.Since(o.start), r.Header.Get("Idempotency-Key"), x, string(body)})
	if reply.err != nil {
		return nil, reply.err
	}
	w := &watched{Reader: strings.NewReader("text")}
	if reply.cut {
		w.Reader = io.MultiReader(strings.NewReader("te"), broken{})
	}
	o.bodies = append(o.bodies, w)
	res := &http.Response{StatusCode: reply.status, Header: http.Header{}, Body: w, ContentLength: 4, Request: r}
	if reply.after != "" {
		res.Header.Set("Retry-After", reply.after)
	}
	if reply.afterDate != 0 {
		res.Header.Set("Date", reply.date.UTC().Format(http.TimeFormat))
		res.Header.Set("Retry-After", reply.date.Add(reply.afterDate).UTC().Format(http.TimeFormat))
	}
	if reply.replayed {
		res.Header.Set("Idempotent-Replayed", "true")
	}
	return res, nil
}

func (o *origin) tries() []received {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.got)
}

func newTransport(t *testing.T, base http.RoundTripper, o *retry.Options) *retry.Transport {
	t.Helper()
	var options retry.Options
	if o != nil {
		options = *o
	}
	options.Base = base
	transport, err := retry.New(&options)
	testkit.Must(t, err)
	return transport
}

// newPost makes a request with a body that can be made anew.
func newPost(ctx context.Context, t *testing.T) *http.Request {
	t.Helper()
	r := testkit.Request(ctx, t, http.MethodPost, "http://origin.example/charges", strings.NewReader("amount=700"))
	return r
}

var errCut = errors.New("connection reset by peer")

// TestTransportRetriesErrors: a try that got no answer is retried, unless a retry cannot help. What
// comes of each answer is in the table of TestTransportSends.
func TestTransportRetriesErrors(t *testing.T) {
	for name, test := range map[string]struct {
		first reply
		tries int
	}{
		"a deadline of the network's": {reply{err: &net.OpError{Op: "dial", Err: context.DeadlineExceeded}}, 2},
		"an end in the middle":        {reply{err: io.ErrUnexpectedEOF}, 2},
		"an unproven certificate":     {reply{err: &tls.CertificateVerificationError{Err: errCut}}, 1},
		"a redirection":               {reply{status: 307, after: "1"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrigin(test.first, reply{status: 201})
				res, err := newTransport(t, o, nil).RoundTrip(newPost(t.Context(), t))
				if got := len(o.tries()); got != test.tries {
					t.Fatalf("%d tries; want %d", got, test.tries)
				}
				want := test.first
				if test.tries == 2 {
					want = reply{status: 201}
				}
				if !errors.Is(err, want.err) || want.err == nil && (err != nil || res.StatusCode != want.status) {
					t.Fatalf("%v, %v; want %+v", res, err, want)
				}
			})
		})
	}
}

// TestTransportBacksOff: each pause is about twice as long as the one before, and
// after the last try the caller gets what that got.
func TestTransportBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(reply{err: errCut})
		transport := newTransport(t, o, &retry.Options{MaxTries: 7, Backoff: time.Second, MaxBackoff: 8 * time.Second})
		res, err := transport.RoundTrip(newPost(t.Context(), t))
		if res != nil || err != errCut {
			t.Errorf("%v, %v", res, err)
		}
		got := o.tries()
		if len(got) != 7 {
			t.Fatalf("%d tries", len(got))
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
			if res != nil || err != left || len(o.tries()) != 1 || time.Since(o.start) != time.Second {
				t.Errorf("%v, %v after %d tries and %v", res, err, len(o.tries()), time.Since(o.start))
			}
		})
	})
	t.Run("canceled in a try", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			tries := 0
			base := tripper(func(*http.Request) (*http.Response, error) {
				tries++
				cancel()
				return nil, ctx.Err()
			})
			if _, err := newTransport(t, base, nil).RoundTrip(newPost(ctx, t)); !errors.Is(err, context.Canceled) || tries != 1 {
				t.Errorf("%v after %d tries", err, tries)
			}
		})
	})
	t.Run("a deadline before the next try", func(t *testing.T) {
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
		want   int // tries of 100 requests that all fail
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
			transport := newTransport(t, o, &retry.Options{Budget: test.budget})
			for range 100 {
				if _, err := transport.RoundTrip(newPost(t.Context(), t)); err != errCut {
					t.Fatal(err)
				}
			}
			if got := len(o.tries()); got < test.want-1 || got > test.want+1 {
				t.Errorf("a budget of %v: %d tries; want about %d", test.budget, got, test.want)
			}
		})
	}
}

// TestTransportAndUnknownSchemes: a scheme that nothing speaks is not tried again.
func TestTransportAndUnknownSchemes(t *testing.T) {
	for _, scheme := range []string{"foo", ""} {
		n := 0
		tr := newTransport(t, tripper(func(r *http.Request) (*http.Response, error) {
			n++
			return http.DefaultTransport.RoundTrip(r)
		}), nil)
		r, _ := http.NewRequest("POST", scheme+"://a", nil)
		if r == nil {
			r, _ = http.NewRequest("POST", "http://a", nil)
			r.URL.Scheme = scheme
		}
		if _, err := tr.RoundTrip(r); err == nil || n != 1 {
			t.Errorf("%q: tried %d times: %v", scheme, n, err)
		}
	}
}
