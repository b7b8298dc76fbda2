package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

var failureRules = []rule{
	{"Without a store nothing runs", inBubble(func(t *testing.T) {
		g := newRig(t, nil, nil)
		for name, f := range map[string]func(context.Context, string) error{
			"refuses": func(context.Context, string) error { return errDown },
			"hangs":   func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() },
		} {
			g.store.fail(f)
			start := time.Now()
			w := g.send()
			isProblem(t, w, "store-unavailable", 503)
			retryAfter(t, w, 30)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("a store that %s: answered after %v", name, took)
			}
			if e := g.last(); e.Kind != idempotency.EventUnavailable || e.Err == nil {
				t.Errorf("observed %+v", e)
			}
		}
		g.store.heal()
		g.ran(0)
		time.Sleep(time.Minute)
		isFresh(t, g.send(), 201)
	})},
	{"Without a store everything can run", inBubble(func(t *testing.T) {
		g := newRig(t, &idempotency.Options{OnStoreFailure: idempotency.FailOpen}, func(w http.ResponseWriter, r *http.Request) {
			if _, ok := leaseOf(r); ok {
				t.Error("a bypassed request has a lease")
			}
			if idempotency.Fail(r.Context(), idempotency.HungUp) {
				t.Error("Fail works on a bypassed request")
			}
			w.Header().Set("Idempotency-Control", "no-store")
			var b bytes.Buffer
			_, _ = b.ReadFrom(r.Body)
			w.WriteHeader(http.StatusAccepted)
			_, _ = w.Write(b.Bytes())
		})
		g.store.fail(func(context.Context, string) error { return errDown })
		for range 2 {
			w := g.send(withBody("whole"))
			isFresh(t, w, 202)
			res := w.Result()
			if res.Header.Get("Idempotency-Bypassed") != "store-unavailable" || res.Header.Get("Idempotency-Control") != "" || w.Body.String() != "whole" {
				t.Errorf("header %v, body %q", res.Header, w.Body)
			}
		}
		g.ran(2)
		if e := g.last(); e.Kind != idempotency.EventBypassed || e.Status != 202 {
			t.Errorf("observed %+v", e)
		}
		g.store.heal()
	})},
	{"Refusals are never stored", inBubble(func(t *testing.T) {
		g := newRig(t, &idempotency.Options{MaxBody: 100}, nil)
		g.store.fail(func(context.Context, string) error { return errDown })
		g.send() // 503
		g.store.heal()
		time.Sleep(time.Minute)
		g.send(withBody(strings.Repeat("x", 101))) // 413
		g.send(with("Idempotency-Key", "k", "k"))  // 400
		isFresh(t, g.send(), 201)
		first := g.send()
		g.send(withBody("other")) // 422
		isReplay(t, g.send(), first)

		// An application's own 410 is an answer like any other.
		app := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "taken", http.StatusGone) })
		first = app.send()
		isReplay(t, app.send(), first)
		app.ran(1)
	})},
	{"Failures of the origin are distinguished", func(t *testing.T) {
		for _, test := range []struct {
			failure idempotency.Failure
			name    string
			status  int
			free    bool // under AtMostOnce, too
		}{
			{idempotency.Unreached, "origin-unreachable", 502, true},
			{idempotency.HungUp, "origin-hung-up", 502, false},
			{idempotency.TimedOut, "origin-timeout", 504, false},
			{idempotency.BrokeOff, "origin-broke-off", 502, false},
		} {
			for _, policy := range []idempotency.Crash{idempotency.TakeOver, idempotency.AtMostOnce} {
				fails := true
				g := newRig(t, &idempotency.Options{OnCrash: policy, Keep: []string{"default", "5xx"}}, func(w http.ResponseWriter, r *http.Request) {
					if !fails {
						return
					}
					w.Header().Set("Content-Encoding", "gzip")
					w.WriteHeader(http.StatusOK)
					_, _ = w.Write([]byte("half an answer"))
					if !idempotency.Fail(r.Context(), test.failure) {
						t.Error("Fail does not know the request")
					}
				})
				w := g.send()
				isProblem(t, w, test.name, test.status)
				if w.Header().Get("Content-Encoding") != "" {
					t.Error("the broken answer's header got through")
				}
				fails = false
				if policy == idempotency.TakeOver || test.free {
					isFresh(t, g.send(), 200)
				} else {
					isProblem(t, g.send(), "outcome-unknown", 409)
				}
			}
		}
		// When bytes have left, the transfer breaks.
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("half"))
			w.(http.Flusher).Flush()
			idempotency.Fail(r.Context(), idempotency.BrokeOff)
		})
		if w := g.sendBroken(); w.Body.String() != "half" {
			t.Errorf("sent %q", w.Body)
		}
		if idempotency.Fail(t.Context(), idempotency.HungUp) {
			t.Error("Fail knows a request that is not guarded")
		}
	}},
	{"An answer outlives a failing store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, nil)
			g.store.fail(failing("settle", errDown))
			first := g.send()
			isFresh(t, first, 201)
			if e := g.last(); !e.StoreFailed || e.Stored || !errors.Is(e.Err, dibs.ErrStore) {
				t.Errorf("observed %+v", e)
			}
			isProblem(t, g.send(), "in-progress", 409)
			other := newRigOn(t, g.store, nil, nil)
			isProblem(t, other.send(), "in-progress", 409)
			g.store.heal()
			testkit.Check(t, g.m.Drain(t.Context()))
			isReplay(t, other.send(), first)
			isReplay(t, g.send(), first)
			g.ran(1)
			other.ran(0)
		})
		// Only while the lease stands.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, nil)
			g.store.fail(func(_ context.Context, op string) error {
				if op == "claim" {
					return nil
				}
				return errDown
			})
			isFresh(t, g.send(), 201)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := g.m.Drain(ctx); err != context.DeadlineExceeded {
				t.Errorf("Drain: %v", err)
			}
			testkit.Check(t, g.m.Drain(t.Context()))
			g.store.heal()
			time.Sleep(time.Minute)
			isFresh(t, g.send(), 201)
		})
		// A store that hangs does not hold the answer up for long.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, nil)
			g.store.fail(func(ctx context.Context, op string) error {
				if op == "settle" {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			})
			start := time.Now()
			isFresh(t, g.send(), 201)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("the answer came after %v", took)
			}
			g.store.heal()
			testkit.Check(t, g.m.Drain(t.Context()))
		})
	}},
}

// batched is a store that is asked in batches and never notifies, as those
// outside the process are, and that does not look at its context.
type batched struct{ *faulty }

func (batched) Batching() store.Batching { return store.Batching{} }

func newBatched(t *testing.T, o *idempotency.Options, h http.Handler) (*faulty, *idempotency.Middleware, http.Handler) {
	t.Helper()
	mem, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = mem.Close() })
	store := &faulty{Store: mem}
	client, err := dibs.New(batched{store}, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	m, err := idempotency.New(client, o)
	testkit.Must(t, err)
	return store, m, m.Wrap(h)
}

func sendTo(h http.Handler, changes ...change) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request(changes...))
	return w
}

// TestBatchedStore: what is asked in batches is waited for no longer than what
// is asked directly.
func TestBatchedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		store, m, h := newBatched(t, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { runs++ }))
		hang := func(op string) {
			store.fail(func(_ context.Context, asked string) error {
				if asked == op {
					time.Sleep(20 * time.Second)
					return errDown
				}
				return nil
			})
		}
		for _, op := range []string{"claim", "settle"} {
			hang(op)
			start := time.Now()
			w := sendTo(h)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("a %s that hangs: answered after %v", op, took)
			}
			if op == "claim" {
				isProblem(t, w, "store-unavailable", 503)
			} else {
				isFresh(t, w, 200)
			}
			store.heal()
			testkit.Check(t, m.Drain(t.Context()))
			time.Sleep(2 * time.Minute)
		}
		first := sendTo(h)
		if runs > 2 {
			t.Errorf("ran %d times", runs)
		}
		isReplay(t, sendTo(h), first)
	})
}

func TestBatchedStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		runs := make(map[string]int)
		_, m, h := newBatched(t, &idempotency.Options{Wait: time.Minute}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			runs[r.Header.Get("Idempotency-Key")]++
			mu.Unlock()
		}))
		var wg sync.WaitGroup
		for key := range 200 {
			for range 5 {
				wg.Go(func() {
					if w := sendTo(h, withKey(fmt.Sprint("key-", key))); w.Code != 200 {
						t.Errorf("status %d", w.Code)
					}
				})
			}
		}
		wg.Wait()
		for key, n := range runs {
			if n != 1 {
				t.Errorf("%s ran %d times", key, n)
			}
		}
		if len(runs) != 200 {
			t.Errorf("%d keys ran; want 200", len(runs))
		}
		testkit.Check(t, m.Drain(t.Context()))
	})
}

// TestDamagedRecord: whatever the store has, a finished request is not run again.
func TestDamagedRecord(t *testing.T) {
	g := newRig(t, nil, nil)
	storeRecord(t, g, `"k"`, []byte("not a record"))
	isProblem(t, g.send(), "answer-not-kept", 410)
	g.ran(0)
	if e := g.last(); !errors.Is(e.Err, idempotency.ErrRecord) {
		t.Errorf("observed %+v", e)
	}
}

// TestFullStore: a store without room refuses before anything runs.
func TestFullStore(t *testing.T) {
	mem, err := memstore.New(&memstore.Options{MaxKeys: 1})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = mem.Close() })
	g := newRigOn(t, &faulty{Store: mem}, nil, nil)
	isFresh(t, g.send(), 201)
	isProblem(t, g.send(withKey("another")), "store-unavailable", 503)
	g.ran(1)
	if e := g.last(); !errors.Is(e.Err, dibs.ErrFull) {
		t.Errorf("observed %+v", e)
	}
}

// TestRecordWithoutRoom: the answer is sent, and the key freed for a retry when
// the store has taken no record for as long as a handler may run.
func TestRecordWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New(&memstore.Options{MaxBytes: 1000})
		testkit.Must(t, err)
		t.Cleanup(func() { _ = mem.Close() })
		g := newRigOn(t, &faulty{Store: mem}, nil, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, strings.Repeat("x", 200))
		})
		filler, err := g.client.Acquire(t.Context(), "filler", nil)
		testkit.Must(t, err)
		testkit.Must(t, filler.Complete(t.Context(), make([]byte, 900), 24*time.Hour))
		first := g.send()
		isFresh(t, first, 200)
		isProblem(t, g.send(), "in-progress", 409)
		testkit.Check(t, g.m.Drain(t.Context()))
		isFresh(t, g.send(), 200)
		if e := g.last(); e.Attempt != 2 {
			t.Errorf("observed %+v", e)
		}
		testkit.Check(t, g.m.Drain(t.Context()))
	})
}

// TestClosedClient: a process that is going down runs nothing, not even where
// it would run without a store.
func TestClosedClient(t *testing.T) {
	g := newRig(t, &idempotency.Options{OnStoreFailure: idempotency.FailOpen}, nil)
	testkit.Must(t, g.client.Close())
	isProblem(t, g.send(), "store-unavailable", 503)
	g.ran(0)
}

// TestWaitersGetNoOtherRequestsAnswer: if the run that duplicates wait for leaves no answer, another
// request may run under the key next. Its answer is not theirs.
func TestWaitersGetNoOtherRequestsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		g := newRig(t, &idempotency.Options{Wait: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			gate.entered <- r
			if <-gate.open; len(gate.entered) == 1 {
				w.WriteHeader(http.StatusBadGateway)
			}
		})
		first := g.sendLater()
		synctest.Wait()
		duplicates := []<-chan *httptest.ResponseRecorder{g.sendLater(), g.sendLater()}
		synctest.Wait()
		var once sync.Once
		slow := make(chan struct{})
		g.store.fail(func(_ context.Context, op string) error {
			if op == "claim" {
				once.Do(func() { <-slow })
			}
			return nil
		})
		close(gate.open)
		isFresh(t, <-first, 502)
		synctest.Wait() // a duplicate claims the key, which takes long
		g.store.heal()
		isFresh(t, g.send(withBody("other")), 200)
		close(slow)
		for _, d := range duplicates {
			isProblem(t, <-d, "key-reused", 422)
		}
		g.ran(2)
	})
}
