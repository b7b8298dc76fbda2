package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// gate is a handler that pauses until it is opened.
type gate struct {
	entered chan *http.Request
	open    chan struct{}
}

func newGate() *gate {
	return &gate{entered: make(chan *http.Request, 100), open: make(chan struct{})}
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.entered <- r
	<-g.open
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte("through the gate"))
}

// sendLater sends in another goroutine.
func (g *rig) sendLater(changes ...change) <-chan *httptest.ResponseRecorder {
	done := make(chan *httptest.ResponseRecorder, 1)
	go func() { done <- g.send(changes...) }()
	return done
}

// retryAfter reads Retry-After as clients do.
func retryAfter(t *testing.T, w *httptest.ResponseRecorder, most int) int {
	t.Helper()
	n, err := strconv.Atoi(w.Header().Get("Retry-After"))
	if err != nil || n < 1 || n > most {
		t.Errorf("Retry-After %q; it must be 1 to %d whole seconds", w.Header().Get("Retry-After"), most)
	}
	return n
}

// crash makes a holder of the key that settles nothing, and lets its lease run out.
// It must run in a bubble.
func crash(t *testing.T, g *rig, send func()) {
	t.Helper()
	g.store.fail(func(ctx context.Context, op string) error {
		if op != "claim" {
			return errDown
		}
		return nil
	})
	send()
	time.Sleep(2 * dibs.DefaultTTL)
	g.store.heal()
}

var stateRules = []rule{
	{"A new key runs", func(t *testing.T) {
		g := newRig(t, nil, nil)
		w := g.send()
		isFresh(t, w, 201)
		if w.Body.String() != "charge 1" {
			t.Errorf("body %q", w.Body)
		}
		g.ran(1)
		e := g.last()
		if e.Kind != idempotency.EventRan || e.Status != 201 || !e.Stored || e.Attempt != 1 || e.Fence == 0 || len(e.Key()) != 12 || e.Method != http.MethodPost {
			t.Errorf("observed %+v", e)
		}
	}},
	{"A finished key is replayed", func(t *testing.T) {
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Idempotent-Replayed", "true")
			w.Header()["idempotent-replayed"] = []string{"true"}
			_, _ = fmt.Fprint(w, "once")
		})
		first := g.send()
		isFresh(t, first, 200)
		if got := first.Header()[strings.ToLower("Idempotent-Replayed")]; got != nil {
			t.Errorf("another spelling of Idempotent-Replayed got through: %q", got)
		}
		for range 3 {
			isReplay(t, g.send(), first)
		}
		g.ran(1)
		if e := g.last(); e.Kind != idempotency.EventReplayed || e.Status != 200 {
			t.Errorf("observed %+v", e)
		}
		if n := len(g.seen()); n != 4 {
			t.Errorf("%d events of 4 requests", n)
		}
		if w := g.send(withMethod("GET")); w.Header().Get("Idempotent-Replayed") != "" {
			t.Error("an unguarded handler's Idempotent-Replayed got through")
		}
	}},
	{"A running key conflicts", inBubble(func(t *testing.T) {
		gate := newGate()
		g := newRig(t, nil, gate.ServeHTTP)
		other := newRigOn(t, g.store, &idempotency.Options{ConflictStatus: 429}, nil)
		first := g.sendLater()
		<-gate.entered
		for range 40 {
			p := isProblem(t, g.send(), "in-progress", 409)
			if p.Instance != "" {
				t.Errorf("instance %q of a conflict", p.Instance)
			}
			retryAfter(t, g.send(), 30)
			// A holder that lives is known to renew every third of its lease.
			retryAfter(t, other.send(), 11)
			time.Sleep(time.Second)
		}
		isProblem(t, other.send(), "in-progress", 429)
		close(gate.open)
		answer := <-first
		isReplay(t, other.send(), answer)
		g.ran(1)
		other.ran(0)
	})},
	{"A duplicate can wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := newGate()
			g := newRig(t, &idempotency.Options{Wait: 10 * time.Second}, gate.ServeHTTP)
			other := newRigOn(t, g.store, &idempotency.Options{Wait: 10 * time.Second}, nil)
			first := g.sendLater()
			<-gate.entered
			here, elsewhere := g.sendLater(), other.sendLater()
			synctest.Wait()
			asked := g.store.claims.Load()
			var more []<-chan *httptest.ResponseRecorder
			for range 20 {
				more = append(more, g.sendLater())
			}
			synctest.Wait()
			if got := g.store.claims.Load(); got != asked {
				t.Errorf("duplicates in the process asked the store %d times", got-asked)
			}
			close(gate.open)
			answer := <-first
			isFresh(t, answer, 201)
			for _, d := range append(more, here, elsewhere) {
				isReplay(t, <-d, answer)
			}
			g.ran(1)
			other.ran(0)
		})
		// If a waiter in another process runs next, its answer serves the waiters here.
		synctest.Test(t, func(t *testing.T) {
			o := &idempotency.Options{Wait: time.Minute}
			gate, gate2 := newGate(), newGate()
			g := newRig(t, o, func(w http.ResponseWriter, r *http.Request) {
				gate.entered <- r
				<-gate.open
				w.WriteHeader(http.StatusBadGateway)
			})
			other := newRigOn(t, g.store, o, gate2.ServeHTTP)
			first := g.sendLater()
			<-gate.entered
			next := other.sendLater()
			synctest.Wait()
			var here []<-chan *httptest.ResponseRecorder
			for range 5 {
				here = append(here, g.sendLater())
			}
			synctest.Wait()
			close(gate.open)
			isFresh(t, <-first, 502)
			<-gate2.entered
			synctest.Wait()
			asked := g.store.claims.Load()
			close(gate2.open)
			answer := <-next
			isFresh(t, answer, 201)
			for _, d := range here {
				isReplay(t, <-d, answer)
			}
			if n := g.store.claims.Load() - asked; n > 1 {
				t.Errorf("five that wait in one process asked the store %d times", n)
			}
			g.ran(1)
			other.ran(1)
		})
		// Not longer than that; a client that leaves gives its place up.
		synctest.Test(t, func(t *testing.T) {
			gate := newGate()
			g := newRig(t, &idempotency.Options{Wait: 10 * time.Second}, gate.ServeHTTP)
			other := newRigOn(t, g.store, &idempotency.Options{Wait: 10 * time.Second}, nil)
			first := g.sendLater()
			<-gate.entered
			start := time.Now()
			ctx, leave := context.WithCancel(t.Context())
			leaves := func(r *http.Request) { *r = *r.WithContext(ctx) }
			leaving := []<-chan *httptest.ResponseRecorder{g.sendLater(leaves), other.sendLater(leaves)}
			staying := []<-chan *httptest.ResponseRecorder{g.sendLater(), other.sendLater()}
			time.Sleep(time.Second)
			leave()
			for _, d := range leaving {
				isProblem(t, <-d, "in-progress", 409)
			}
			if waited := time.Since(start); waited != time.Second {
				t.Errorf("a client that left after 1s was served after %v", waited)
			}
			for _, d := range staying {
				isProblem(t, <-d, "in-progress", 409)
			}
			if waited := time.Since(start); waited < 10*time.Second || waited > 11*time.Second {
				t.Errorf("waited %v; want 10s", waited)
			}
			close(gate.open)
			isFresh(t, <-first, 201)
			g.ran(1)
			other.ran(0)
		})
		// The next in order runs when the first leaves no answer.
		synctest.Test(t, func(t *testing.T) {
			var running, most atomic.Int32
			var g *rig
			g = newRig(t, &idempotency.Options{Wait: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				time.Sleep(time.Second)
				if g.runs.Load() < 3 {
					w.WriteHeader(http.StatusBadGateway)
				}
			})
			var sent []<-chan *httptest.ResponseRecorder
			for range 10 {
				sent = append(sent, g.sendLater())
				synctest.Wait()
			}
			var codes []int
			for _, d := range sent {
				codes = append(codes, (<-d).Code)
			}
			if got, want := fmt.Sprint(codes), "[502 502 200 200 200 200 200 200 200 200]"; got != want {
				t.Errorf("answers %v; want %v", got, want)
			}
			g.ran(3)
			if most.Load() != 1 {
				t.Errorf("%d ran at once", most.Load())
			}
		})
	}},
	{"Replays never conflict", func(t *testing.T) {
		g := newRig(t, nil, nil)
		first := g.send()
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() { isReplay(t, g.send(), first) })
		}
		wg.Wait()
		g.ran(1)
	}},
	{"Exactly one runs", func(t *testing.T) {
		base := newRig(t, nil, nil)
		for _, wait := range []time.Duration{0, time.Minute} {
			var rigs []*rig
			for range 4 {
				rigs = append(rigs, newRigOn(t, base.store, &idempotency.Options{Wait: wait}, nil))
			}
			for key := range 50 {
				var wg sync.WaitGroup
				for i := range 16 {
					wg.Go(func() {
						w := rigs[i%4].send(withKey(fmt.Sprintf("%v-%d", wait, key)))
						if w.Code != 201 && (w.Code != 409 || wait > 0) {
							t.Errorf("status %d", w.Code)
						}
					})
				}
				wg.Wait()
			}
			total := int64(0)
			for _, g := range rigs {
				total += g.runs.Load()
			}
			if total != 50 {
				t.Errorf("50 keys ran %d times", total)
			}
		}
	}},
	{"An abandoned key is taken over", inBubble(func(t *testing.T) {
		attempts := make(chan int, 2)
		h := func(w http.ResponseWriter, r *http.Request) {
			lease, _ := leaseOf(r)
			attempts <- lease.Attempt()
		}
		g := newRig(t, nil, h)
		dead := newRigOn(t, g.store, nil, nil)
		crash(t, g, func() {
			g.send()
			time.Sleep(15 * time.Second)
			// One that has not renewed for so long is waited for to the end.
			if n := retryAfter(t, dead.send(), 30); n < 14 || n > 16 {
				t.Errorf("Retry-After %d for a dead holder's lease of 15s more", n)
			}
		})
		if got := <-attempts; got != 1 {
			t.Errorf("the first attempt is number %d", got)
		}
		other := newRigOn(t, g.store, nil, h)
		isFresh(t, other.send(), 200)
		if got := <-attempts; got != 2 {
			t.Errorf("the attempt after a crash is number %d", got)
		}
		if e := other.last(); e.Attempt != 2 {
			t.Errorf("observed %+v", e)
		}
	})},
	{"At most once is a choice", inBubble(func(t *testing.T) {
		o := &idempotency.Options{OnCrash: idempotency.AtMostOnce, Retention: time.Hour}
		g := newRig(t, o, nil)
		crash(t, g, func() { g.send() })
		other := newRigOn(t, g.store, o, nil)
		var id string
		for range 3 {
			w := other.send()
			p := isProblem(t, w, "outcome-unknown", 409)
			if w.Header().Get("Retry-After") != "" {
				t.Error("Retry-After on an unknown outcome")
			}
			var ok bool
			if id, ok = strings.CutPrefix(p.Instance, "urn:dibs:claim:"); !ok || len(id) != 16 {
				t.Errorf("instance %q", p.Instance)
			}
			time.Sleep(24 * time.Hour) // beyond any retention
		}
		other.ran(0)
		if e := other.last(); e.Kind != idempotency.EventUnknown {
			t.Errorf("observed %+v", e)
		}
		// An operator resolves it with an answer.
		record, err := idempotency.EncodeAnswer("http:", &idempotency.Answer{Status: 200, Body: []byte("resolved by hand")})
		testkit.Must(t, err)
		for entry, err := range other.store.List(t.Context(), store.Query{ID: id}) {
			testkit.Must(t, err)
			if ok, err := other.store.Resolve(t.Context(), entry.Key, id, record, time.Hour); !ok || err != nil {
				t.Fatalf("Resolve: %v, %v", ok, err)
			}
		}
		if w := other.send(); w.Code != 200 || w.Body.String() != "resolved by hand" || w.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("after it was settled: %d %q", w.Code, w.Body)
		}
		other.ran(0)
	})},
}
