package idempotency_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
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

// TestTransportWaitsForTheFirst: a client that sends a request again, because the
// connection broke while it ran, waits, and gets the first run's answer.
func TestTransportWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := make(chan struct{})
		finish := make(chan struct{})
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			close(running)
			<-finish
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "charged")
		})
		var tries atomic.Int64
		server, base := newBubbleServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch tries.Add(1) {
			case 1:
				body, _ := io.ReadAll(r.Body)
				again := r.Clone(context.WithoutCancel(r.Context()))
				again.Body = io.NopCloser(strings.NewReader(string(body)))
				go g.h.ServeHTTP(httptest.NewRecorder(), again)
				<-running
				panic(http.ErrAbortHandler)
			case 2:
				defer close(finish)
			}
			g.h.ServeHTTP(w, r)
		}))
		status, body, replayed, err := charge(newClient(t, base), server.URL)
		if err != nil || status != 201 || body != "charged" || !replayed || tries.Load() != 3 {
			t.Errorf("%d, %q, replayed %v, %v after %d attempts", status, body, replayed, err, tries.Load())
		}
		g.ran(1)
	})
}

// TestTransportAndTheMiddlewaresAnswers: each answer of a guarded server is
// retried or not, as its meaning says.
func TestTransportAndTheMiddlewaresAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		options idempotency.Options
		handler http.HandlerFunc
		fail    bool // the store fails at first
		first   func(t *testing.T, g *rig, key change)
		status  int
		tries   int64
		runs    int64
	}{
		"another use of the key": {
			first:  func(t *testing.T, g *rig, key change) { g.send(key, withBody("something else")) },
			status: 422, tries: 1, runs: 1,
		},
		"an answer that was not kept": {
			options: idempotency.Options{MaxStored: 8},
			handler: func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, strings.Repeat("long ", 100)) },
			first: func(t *testing.T, g *rig, key change) {
				g.send(key, withTarget("/"), withBody("amount=700"), with("Content-Type"))
			},
			status: 410, tries: 1, runs: 1,
		},
		"an unknown outcome": {
			options: idempotency.Options{OnCrash: idempotency.AtMostOnce},
			handler: func(_ http.ResponseWriter, r *http.Request) { idempotency.Fail(r.Context(), idempotency.HungUp) },
			first: func(t *testing.T, g *rig, key change) {
				g.send(key, withTarget("/"), withBody("amount=700"), with("Content-Type"))
			},
			status: 409, tries: 1, runs: 1,
		},
		"a store that comes back": {fail: true, status: 201, tries: 2, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, &test.options, test.handler)
				const key = `"the key"`
				if test.first != nil {
					test.first(t, g, func(r *http.Request) {
						r.Header.Set("Idempotency-Key", key)
						r.Host = "api.example"
					})
				}
				if test.fail {
					g.store.fail(func(context.Context, string) error { return errDown })
				}
				var tries atomic.Int64
				server, base := newBubbleServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					tries.Add(1)
					g.h.ServeHTTP(w, r)
					g.store.heal()
				}))
				client := &http.Client{Transport: newTransport(t, base, retry.Options{
					Key: func(*http.Request) string { return "the key" }, MaxBackoff: 10 * time.Second,
				})}
				status, body, _, err := charge(client, server.URL+"/")
				if err != nil || status != test.status || tries.Load() != test.tries {
					t.Errorf("%d, %q, %v after %d attempts; want %d after %d", status, body, err, tries.Load(), test.status, test.tries)
				}
				g.ran(test.runs)
			})
		})
	}
}

// TestTransportAndHangingOrigins: the transport does not hang on an origin that accepts and
// sends nothing, nor on a refusal that never ends.
func TestTransportAndHangingOrigins(t *testing.T) {
	for name, head := range map[string]string{
		"says nothing":              "",
		"an endless refusal":        "HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 100\r\n\r\nnot a hundred bytes",
		"a refusal without length":  "HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nConnection: close\r\n\r\nand so on",
		"a refusal in large pieces": "HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 1000000000\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over := make(chan struct{})
				t.Cleanup(func() { close(over) })
				var accepted atomic.Int64
				base := &http.Transport{ResponseHeaderTimeout: time.Second, DialContext: func(context.Context, string, string) (net.Conn, error) {
					n := accepted.Add(1)
					client, conn := net.Pipe()
					go func() {
						defer conn.Close()
						r, err := http.ReadRequest(bufio.NewReader(conn))
						if err != nil {
							return
						}
						_, _ = io.Copy(io.Discard, r.Body)
						if n > 2 {
							_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone")
							return
						}
						_, _ = io.WriteString(conn, head)
						<-over
					}()
					return client, nil
				}}
				start := time.Now()
				status, body, _, err := charge(newClient(t, base), "http://origin.example")
				if err != nil || status != 201 || body != "done" || accepted.Load() != 3 || time.Since(start) > 5*time.Second {
					t.Errorf("%d, %q, %v after %v and %d attempts", status, body, err, time.Since(start), accepted.Load())
				}
			})
		})
	}
}

// TestTransportAndAnUnreachableOrigin: the caller gets the network's error.
func TestTransportAndAnUnreachableOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, _, err := charge(newClient(t, nil), "http://127.0.0.1:1") // a port on which no server listens
		if _, ok := errors.AsType[*net.OpError](err); !ok {
			t.Errorf("%v; want a *net.OpError", err)
		}
	})
}
