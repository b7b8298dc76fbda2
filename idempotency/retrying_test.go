package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// newTransport returns a Transport that sends over base.
func newTransport(t *testing.T, base http.RoundTripper, o retry.Options) *retry.Transport {
	t.Helper()
	o.Base = base
	transport, err := retry.New(&o)
	testkit.Must(t, err)
	return transport
}

// newClient returns an HTTP client with a Transport that is quick to retry.
func newClient(t *testing.T, base *http.Transport) *http.Client {
	t.Helper()
	if base == nil {
		base = &http.Transport{}
	}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: newTransport(t, base, retry.Options{
		MaxTries: 8, Backoff: 5 * time.Millisecond, MaxBackoff: 2 * time.Second, Budget: 1,
	})}
}

// charge posts and returns what came back.
func charge(client *http.Client, url string) (status int, body string, replayed bool, err error) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader("amount=700"))
	if err != nil {
		return 0, "", false, err
	}
	r.Host = "api.example"
	res, err := client.Do(r)
	if err != nil {
		return 0, "", false, err
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	return res.StatusCode, string(text), res.Header.Get("Idempotent-Replayed") == "true", err
}

// TestTransportOverABadNetwork: connections break before the request arrives, while
// it runs, and after it ran, before and in the middle of the answer's head. The
// guarded handler runs once for each request all the same.
func TestTransportOverABadNetwork(t *testing.T) {
	g := newRig(t, nil, nil)
	var mu sync.Mutex
	breaks := map[string]int{} // by key: how often it broke
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		key := r.Header.Get("Idempotency-Key")
		n := breaks[key]
		breaks[key]++
		mu.Unlock()
		switch n {
		case 0: // nothing happened
			panic(http.ErrAbortHandler)
		case 1: // it ran, and the answer was lost
			g.h.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case 2: // it broke off in the head
			g.h.ServeHTTP(httptest.NewRecorder(), r)
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 201 Cre"))
			_ = conn.Close()
		default:
			g.h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	client := newClient(t, nil)
	const requests = 20
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			status, body, replayed, err := charge(client, server.URL)
			if err != nil || status != 201 || !replayed || !strings.HasPrefix(body, "charge ") {
				t.Errorf("%d, %q, replayed %v, %v", status, body, replayed, err)
			}
		})
	}
	all.Wait()
	g.ran(requests)
}

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

// roundTripper is a function that answers requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

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
					tr := newTransport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
						tried++
						res, err := base.RoundTrip(r)
						if refusals > 0 && tried == 1+refusals { // the next one is after this answer's Retry-After
							close(more)
							synctest.Wait()
						}
						return res, err
					}), retry.Options{})
					r := testkit.Request(t.Context(), t, http.MethodPost, "http://api.example/charges", strings.NewReader("amount=700"))
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
