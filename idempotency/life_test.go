package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestLifeOfARequest: what docs/reference/http.md draws is what happens. The middleware is the proxy here, and
// the handler is the service.
func TestLifeOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newGate()
		g := newRig(t, nil, service.ServeHTTP)
		var mu sync.Mutex // the renewer's goroutine writes, too
		var drawn strings.Builder
		known := "" // the condition of the key
		// look draws the key's condition after the message that changed it.
		look := func() {
			now := "free"
			for e, err := range g.store.List(t.Context(), store.Query{}) {
				testkit.Must(t, err)
				now = string(e.Condition)
			}
			if known != "" && now != known {
				fmt.Fprintf(&drawn, "    Note over store: %s\n", now)
			}
			known = now
		}
		// say draws a message, or what an actor does alone.
		say := func(from, to, what string) {
			mu.Lock()
			defer mu.Unlock()
			look()
			if to == "" {
				fmt.Fprintf(&drawn, "    Note over %s: %s\n", from, what)
				return
			}
			fmt.Fprintf(&drawn, "    %s->>%s: %s\n", from, to, what)
		}
		claim := "Claim"
		what := map[string]string{"renew": "Renew, after a third of the lease", "settle": "Keep, with the answer"}
		g.store.fail(func(_ context.Context, op string) error {
			text := what[op]
			if op == "claim" {
				text = claim // no other goroutine claims
			}
			say("proxy", "store", text)
			return nil
		})

		ctx, giveUp := context.WithCancel(t.Context())
		say("client", "proxy", "POST, with a key")
		first := g.sendLater(func(r *http.Request) { *r = *r.WithContext(ctx) })
		if l, ok := dibs.FromContext((<-service.entered).Context()); !ok || l.Fence() == 0 {
			t.Error("the request that runs has no fence")
		}
		say("proxy", "service", "the request, with its fence")
		time.Sleep(dibs.DefaultTTL/3 + 2*time.Second)
		say("client", "", "gives up")
		giveUp()
		say("client", "proxy", "the same request again")
		second := g.send()
		isProblem(t, second, "in-progress", http.StatusConflict)
		retryAfter(t, second, int(dibs.DefaultTTL/time.Second))
		say("proxy", "client", "409 in-progress, with Retry-After")
		say("service", "proxy", "201, after the client has gone")
		close(service.open)
		<-first
		claim = "Claim: the record answers"
		say("client", "proxy", "the same request again")
		third := g.send()
		if third.Code != 201 || third.Header().Get("Idempotent-Replayed") != "true" || g.runs.Load() != 1 {
			t.Errorf("%d %v after %d runs", third.Code, third.Header(), g.runs.Load())
		}
		say("proxy", "client", "201, with Idempotent-Replayed")
		say("store", "", "a day later")
		time.Sleep(24 * time.Hour)
		look()
		if page := string(testkit.ReadFile(t, "../docs/reference/http.md")); !strings.Contains(page, "\n    participant service\n"+drawn.String()+"```\n") {
			t.Errorf("docs/reference/http.md does not draw what happens:\n%s", drawn.String())
		}
	})
}

// TestDrainWaitsForRuns: Drain waits for a handler that runs, and for the settlement of its key.
func TestDrainWaitsForRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		g := newRig(t, nil, gate.ServeHTTP)
		first := g.sendLater()
		<-gate.entered
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := g.m.Drain(ctx); err != context.DeadlineExceeded {
			t.Errorf("while the handler runs: %v", err)
		}
		close(gate.open)
		testkit.Check(t, g.m.Drain(t.Context()))
		isReplay(t, g.send(), <-first)
	})
}

// TestDrainWhileAnswersCome: handlers may outlive the server's limit, so an answer may begin to be
// stored while Drain waits for another one.
func TestDrainWhileAnswersCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, nil, nil)
		var drains sync.WaitGroup
		for i := range 100 {
			g.store.fail(failing("settle", errDown))
			isFresh(t, g.send(withKey(fmt.Sprint(i))), 201)
			g.store.heal()
			drains.Go(func() {
				testkit.Check(t, g.m.Drain(t.Context()))
			})
			time.Sleep(50 * time.Millisecond) // when the answer before is stored
		}
		drains.Wait()
		for i := range 100 {
			if w := g.send(withKey(fmt.Sprint(i))); w.Header().Get("Idempotent-Replayed") != "true" {
				t.Errorf("the answer of %d was not stored", i)
			}
		}
	})
}
