package idempotency_test

import (
	"context"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// loseLease makes the store say that every lease is lost, until healed.
func loseLease(g *rig) {
	g.store.fail(failing("renew", errDown))
}

var runRules = []rule{
	{"A run outlives its client", inBubble(func(t *testing.T) {
		entered, left, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			close(entered)
			<-left
			if r.Context().Value(http.ServerContextKey) == nil || r.Context().Value(http.LocalAddrContextKey) == nil {
				t.Error("the server's values are not in the context")
			}
			time.Sleep(time.Minute)
			done <- r.Context().Err()
			_, _ = w.Write([]byte("done all the same"))
		})
		_, base := newBubbleServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// Tell when the connection's own context has ended.
			context.AfterFunc(r.Context(), func() { close(left) })
			g.h.ServeHTTP(w, r)
		}))
		conn, err := base.DialContext(t.Context(), "", "")
		testkit.Must(t, err)
		const text = "POST / HTTP/1.1\r\nHost: a.example\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\nhi"
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		<-entered
		_ = conn.Close()
		if err := <-done; err != nil {
			t.Errorf("the handler's context ended: %v", err)
		}
		synctest.Wait() // the answer is stored
		r := request(withHost("a.example"), withBody("hi"), withTarget("/"), with("Content-Type"))
		w := httptest.NewRecorder()
		g.h.ServeHTTP(w, r)
		if w.Body.String() != "done all the same" || w.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("the retry got %d %q", w.Code, w.Body)
		}
		g.ran(1)
	})},
	{"A run has a limit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
				start := time.Now()
				deadline, ok := r.Context().Deadline()
				if !ok || deadline.Sub(start) != 5*time.Minute {
					t.Errorf("deadline in %v, %v", deadline.Sub(start), ok)
				}
				<-r.Context().Done()
				if ran := time.Since(start); ran != 5*time.Minute {
					t.Errorf("the context ended after %v", ran)
				}
				if err := r.Context().Err(); err != context.DeadlineExceeded {
					t.Errorf("the context ended with %v", err)
				}
				if err := context.Cause(r.Context()); err != context.DeadlineExceeded {
					t.Errorf("the context ended with cause %v", err)
				}
				w.WriteHeader(http.StatusAccepted)
			})
			first := g.send()
			isFresh(t, first, 202) // its answer counts all the same
			isReplay(t, g.send(), first)
		})
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, &idempotency.Options{HandlerLimit: time.Second}, func(w http.ResponseWriter, r *http.Request) {
				child, cancel := context.WithCancel(r.Context())
				defer cancel()
				<-child.Done()
			})
			start := time.Now()
			g.send(withKey("a"))
			g.send(withKey("b"))
			if ran := time.Since(start); ran != 2*time.Second {
				t.Errorf("two runs of 1s took %v", ran)
			}
		})
	}},
	{"A lost lease ends a run", func(t *testing.T) {
		for _, flush := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("X-Late", "1")
					w.WriteHeader(http.StatusCreated)
					if flush {
						w.(http.Flusher).Flush()
					}
					<-r.Context().Done()
					if cause := context.Cause(r.Context()); cause != dibs.ErrLost {
						t.Errorf("the context ended with cause %v", cause)
					}
					_, _ = w.Write([]byte("late"))
				})
				successor := newRigOn(t, g.store, nil, nil)
				loseLease(g)
				late := make(chan *httptest.ResponseRecorder, 1)
				go func() {
					if flush {
						late <- g.sendBroken()
					} else {
						late <- g.send()
					}
				}()
				w := <-late
				if !flush {
					isProblem(t, w, "lease-lost", 503)
					retryAfter(t, w, 30)
					if w.Header().Get("X-Late") != "" {
						t.Error("the late answer's header got through")
					}
				}
				if e := g.last(); e.Kind != idempotency.EventLost || e.Stored {
					t.Errorf("observed %+v", e)
				}
				g.store.heal()
				time.Sleep(time.Minute)
				first := successor.send()
				isFresh(t, first, 201)
				isReplay(t, g.send(), first)
			})
		}
		// A late holder never overwrites its successor's answer.
		synctest.Test(t, func(t *testing.T) {
			var g, successor *rig
			g = newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				g.store.heal()
				time.Sleep(dibs.DefaultTTL)
				isFresh(t, successor.send(), 201)
				_, _ = w.Write([]byte("late"))
			})
			successor = newRigOn(t, g.store, nil, nil)
			loseLease(g)
			isProblem(t, g.send(), "lease-lost", 503)
			if w := successor.send(); w.Body.String() != "charge 1" {
				t.Errorf("the successor's answer became %q", w.Body)
			}
		})
		// A handler that continues forever does not keep its successor's answer
		// from retries.
		synctest.Test(t, func(t *testing.T) {
			forever := make(chan struct{})
			g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) { <-forever })
			successor := newRigOn(t, g.store, nil, nil)
			loseLease(g)
			late := make(chan *httptest.ResponseRecorder, 1)
			go func() { late <- g.send() }()
			time.Sleep(time.Minute)
			g.store.heal()
			first := successor.send()
			isFresh(t, first, 201)
			isReplay(t, g.send(), first)
			close(forever)
			isProblem(t, <-late, "lease-lost", 503)
		})
		// A long run keeps its lease.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) { time.Sleep(4 * time.Minute) })
			first := g.send()
			isFresh(t, first, 200)
			isReplay(t, g.send(), first)
		})
	}},
	{"A panic is passed on", func(t *testing.T) {
		for _, policy := range []idempotency.Crash{idempotency.TakeOver, idempotency.AtMostOnce} {
			for name, end := range map[string]func(){
				"panic": func() { panic("boom") },
				"abort": func() { panic(http.ErrAbortHandler) },
				"exit":  runtime.Goexit,
			} {
				first := true
				attempt := 0
				g := newRig(t, &idempotency.Options{OnCrash: policy}, func(w http.ResponseWriter, r *http.Request) {
					lease, _ := leaseOf(r)
					attempt = lease.Attempt()
					if first {
						first = false
						_, _ = w.Write([]byte("half"))
						end()
					}
				})
				ended := make(chan any)
				w := httptest.NewRecorder()
				go func() {
					defer func() { ended <- recover() }()
					g.h.ServeHTTP(w, request())
				}()
				p := <-ended
				if name == "panic" && p != "boom" || name == "abort" && p != http.ErrAbortHandler || name == "exit" && p != nil {
					t.Errorf("%s: passed on as %v", name, p)
				}
				if w.Body.Len() != 0 {
					t.Errorf("%s: %q was sent", name, w.Body)
				}
				if e := g.last(); e.Kind != idempotency.EventInterrupted || e.Status != 0 {
					t.Errorf("%s: observed %+v", name, e)
				}
				if policy == idempotency.AtMostOnce {
					isProblem(t, g.send(), "outcome-unknown", 409)
					g.ran(1)
					continue
				}
				isFresh(t, g.send(), 200)
				if attempt != 2 {
					t.Errorf("%s: the next attempt is number %d", name, attempt)
				}
			}
		}
		// As net/http answers it: the connection ends without an answer.
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			panic("boom")
		})
		server := httptest.NewUnstartedServer(g.h)
		server.Config.ErrorLog = log.New(&strings.Builder{}, "", 0)
		server.Start()
		defer server.Close()
		r := testkit.Request(t.Context(), t, http.MethodPost, server.URL, strings.NewReader("x"))
		r.Header["Idempotency-Key"] = []string{"k"}
		r.GetBody = nil
		if res, err := server.Client().Do(r); err == nil {
			t.Errorf("a panic was answered %v", res.Status)
			_ = res.Body.Close()
		}
	}},
	{"The fence is in the context", func(t *testing.T) {
		var fences []uint64
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			child := context.WithValue(r.Context(), http.ServerContextKey, nil)
			lease, ok := dibs.FromContext(child)
			if !ok {
				t.Fatal("no lease in the context")
			}
			fences = append(fences, lease.Fence())
			w.WriteHeader(http.StatusInternalServerError)
		})
		for range 3 {
			g.send()
		}
		if len(fences) != 3 || fences[0] >= fences[1] || fences[1] >= fences[2] {
			t.Errorf("fences %v; they must rise", fences)
		}
		if e := g.last(); e.Fence != fences[2] {
			t.Errorf("observed fence %d; want %d", e.Fence, fences[2])
		}
	}},
}
