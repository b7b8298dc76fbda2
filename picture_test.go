package dibs_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestTimelineOfACrash: what docs/design/architecture.md draws is what happens.
func TestTimelineOfACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, keys := time.Now(), newStore(t)
		var mu sync.Mutex
		var drawn strings.Builder // under mu
		known := ""               // under mu
		actor := strings.NewReplacer("host A", "A", "host B", "B", "store", "S")
		// say draws a message, or what an actor does alone, and the key's state if it changed.
		say := func(from, to, what string) {
			mu.Lock()
			defer mu.Unlock()
			head := "Note over " + from
			if to != "" {
				head = from + "->>" + to
			}
			fmt.Fprintf(&drawn, "    %s: %.0f s: %s\n", actor.Replace(head), time.Since(began).Seconds(), what)
			now := "free"
			for e, err := range keys.List(t.Context(), store.Query{}) {
				testkit.Must(t, err)
				if now = string(e.Condition); now == "held" {
					now += " by " + e.Runs[0].Owner.Label
				}
			}
			if now != known {
				known = now
				fmt.Fprintf(&drawn, "    Note over S: %s\n", now)
			}
		}
		// host returns a client of a host, and the line between it and the store.
		host := func(name string) (*faulty, *dibs.Client) {
			line := newFaulty(keys)
			return line, newClient(t, line, &dibs.Options{Label: name, Wait: time.Minute})
		}
		request := &dibs.AcquireOptions{MaxAge: time.Hour}

		lineA, a := host("host A")
		_, b := host("host B")
		first, err := a.Acquire(t.Context(), "key", request)
		testkit.Must(t, err)
		say("host A", "store", "Claim")
		lineA.set(nil, func(string) error { say("host A", "store", "Renew"); return nil })
		second := make(chan *dibs.Lease)
		go func() {
			l, err := b.Acquire(t.Context(), "key", request)
			testkit.Check(t, err)
			second <- l
		}()
		synctest.Wait()
		say("host B", "store", "Claim: it waits")
		time.Sleep(12 * time.Second)
		lineA.set(func(string) error { return errCut }, nil)
		say("host A", "", "crashes")
		l := <-second
		if l.Attempt() != 2 || l.Fence() <= first.Fence() {
			t.Errorf("attempt %d with the fence %d after %d", l.Attempt(), l.Fence(), first.Fence())
		}
		say("store", "host B", "its turn, because the lease ran out: attempt 2, a higher fence")
		time.Sleep(3 * time.Second)
		testkit.Must(t, l.Complete(t.Context(), []byte("answer"), time.Hour))
		say("host B", "store", "Keep, with the answer")
		time.Sleep(5 * time.Second)
		_, again := host("host A")
		var done *dibs.DoneError
		if _, err := again.Acquire(t.Context(), "key", request); !errors.As(err, &done) || string(done.Record.Data) != "answer" {
			t.Error(err)
		}
		say("host A", "store", "Claim: the record answers")
		page := string(testkit.ReadFile(t, "docs/design/architecture.md"))
		if !strings.Contains(page, "\n    participant B as host B\n"+drawn.String()+"```\n") {
			t.Errorf("docs/design/architecture.md does not draw what happens:\n%s", drawn.String())
		}
	})
}
