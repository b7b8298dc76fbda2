package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// cutter is a dialer whose last connection can be cut.
type cutter struct {
	dial func(context.Context, string, string) (net.Conn, error)

	mu   sync.Mutex
	last net.Conn
}

func (c *cutter) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.dial(ctx, network, address)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = conn
	return conn, err
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.last.Close()
}

// parts is a handler that streams six parts and a trailer. It stops after the third until more is
// closed.
func parts(more <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		for i := range 6 {
			if i == 3 {
				_ = http.NewResponseController(w).Flush()
				<-more
			}
			_, _ = fmt.Fprintf(w, "part %d\n", i)
		}
		w.Header().Set("X-Sum", "21")
	}
}

const allParts = "part 0\npart 1\npart 2\npart 3\npart 4\npart 5\n"

// readHalf reads three of the six parts.
func readHalf(t *testing.T, res *http.Response) string {
	t.Helper()
	half := make([]byte, len(allParts)/2)
	if _, err := io.ReadFull(res.Body, half); err != nil {
		t.Fatal(err)
	}
	return string(half)
}

// TestTransportReadsOnWhileTheRequestRuns: an answer breaks off, and its request still runs. The
// transport waits as long as the server says, and reads on in the replay, up to its trailer.
func TestTransportReadsOnWhileTheRequestRuns(t *testing.T) {
	for _, version := range []int{1, 2} {
		for _, refusals := range []int{0, 1, 3} {
			t.Run(fmt.Sprintf("HTTP/%d, after %d refusals", version, refusals), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					more := make(chan struct{})
					g := newRig(t, nil, parts(more))
					_, base := newBubbleServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.h.ServeHTTP(w, r) }))
					c := &cutter{dial: base.DialContext}
					base.DialContext = c.DialContext
					if version == 2 {
						base.Protocols = new(http.Protocols)
						base.Protocols.SetUnencryptedHTTP2(true)
					}
					tried := 0
					tr := newTransport(t, tripper(func(r *http.Request) (*http.Response, error) {
						tried++
						res, err := base.RoundTrip(r)
						if refusals > 0 && tried == 1+refusals { // the next one is after this answer's Retry-After
							close(more)
							synctest.Wait()
						}
						return res, err
					}), nil)
					r := newPost(t.Context(), t)
					r.URL.Host = "api.example"
					res, err := tr.RoundTrip(r)
					if err != nil || res.ProtoMajor != version {
						t.Fatal(res, err)
					}
					defer res.Body.Close()
					got, began := readHalf(t, res), time.Now()
					c.cut()
					if refusals == 0 {
						close(more)
						synctest.Wait()
					}
					rest, err := io.ReadAll(res.Body)
					got += string(rest)
					if got != allParts || err != nil || tried != 2+refusals || res.Trailer.Get("X-Sum") != "21" {
						t.Errorf("read %q, %v after %d attempts, with the trailer %v", got, err, tried, res.Trailer)
					}
					if took := time.Since(began); took < time.Duration(refusals)*time.Second {
						t.Errorf("it was read on after %v, which is earlier than the server said", took)
					}
					g.ran(1)
				})
			})
		}
	}
}

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
		options  idempotency.TransportOptions
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
		"another status":    {again: func() (*http.Response, error) { return answer(201, "0123456789", replayed, "true"), nil }, want: "the retry was answered 201, and the first attempt 200", sent: 2},
		"a new run":         {again: func() (*http.Response, error) { return answer(200, "0123456789"), nil }, want: "which is no replay", sent: 2},
		"not kept":          {again: func() (*http.Response, error) { return answer(410, ""), nil }, want: "answered 410", sent: 2},
		"busy all the time": {again: func() (*http.Response, error) { return answer(409, "", "Retry-After", "2"), nil }, want: "answered 409, and all attempts were used (TransportOptions.Attempts)", sent: 5},
		"away all the time": {again: func() (*http.Response, error) { return answer(503, "", "Retry-After", "2"), nil }, want: "answered 503, and all attempts", sent: 5},
		"no answer":         {again: func() (*http.Response, error) { return nil, errCut }, want: "all attempts were used (TransportOptions.Attempts): unexpected EOF; the last retry got connection reset by peer", sent: 5},
		"the last attempt":  {options: idempotency.TransportOptions{Attempts: 1}, want: "all attempts", sent: 1},
		"no budget": {
			again:   func() (*http.Response, error) { return answer(503, "", "Retry-After", "2"), nil },
			options: idempotency.TransportOptions{Attempts: 100}, want: "the budget of retries was used up (TransportOptions.Budget)", sent: 11,
		},
		"no time": {
			again:    func() (*http.Response, error) { return answer(409, "", "Retry-After", "2"), nil },
			deadline: 3 * time.Second, want: "the context would end before the next attempt", sent: 3,
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
					t.Errorf("%q, %v after %d attempts; want %q after %d", got, err, sent, test.want, test.sent)
				}
				if n, later := res.Body.Read(make([]byte, 1)); n != 0 || later == nil || later.Error() != err.Error() || sent != test.sent {
					t.Errorf("the next read got %d bytes, %v, after %d attempts", n, later, sent)
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
					t.Errorf("%q, %v after %d attempts and %v", got, err, sent, time.Since(began))
				}
				if !o.bodies[0].closed {
					t.Error("the refusal's body was not closed")
				}
			})
		})
	}
}
