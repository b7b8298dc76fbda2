package idempotency_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
