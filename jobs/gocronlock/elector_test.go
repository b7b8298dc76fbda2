package gocronlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs/gocronlock"
	"github.com/dibs-go/dibs/stores/memstore"
)

func newElector(t *testing.T, store dibs.Store, skew time.Duration) *gocronlock.Elector {
	t.Helper()
	e, err := gocronlock.NewElector(t.Context(), newClient(t, store), "leader", skew)
	testkit.Must(t, err)
	t.Cleanup(e.Close)
	return e
}

// TestElectorClocksDiffer: the leader stops just after it has run a tick. The host whose
// clock is behind does not run that tick again, and runs the next one.
func TestElectorClocksDiffer(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		var k ticks
		job := k.run(100 * time.Millisecond)
		time.Sleep(time.Second)
		first, second := newElector(t, store, 5*time.Second), newElector(t, store, 5*time.Second)
		stop := host(t, 0, gocron.WithDistributedElector(first), job)
		host(t, -2*time.Second, gocron.WithDistributedElector(second), job)
		time.Sleep(10*time.Minute - 500*time.Millisecond) // half a second after a tick
		stop()
		first.Close()
		if err := first.IsLeader(t.Context()); err == nil {
			t.Error("it leads after Close")
		}
		time.Sleep(10 * time.Minute)
		testkit.Must(t, second.IsLeader(t.Context()))
		if missed := k.check(t, 20); missed > 0 {
			t.Errorf("%d ticks were missed", missed)
		}
	})
}

// TestElectorLoses: a leader that cannot reach the store stops a skew before another host
// leads, and leads again in its turn.
func TestElectorLoses(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		broken := &failing{Store: store}
		first, second := newElector(t, broken, 5*time.Second), newElector(t, store, 5*time.Second)
		broken.down.Store(true)
		var last time.Time
		for second.IsLeader(t.Context()) != nil {
			if first.IsLeader(t.Context()) == nil {
				last = time.Now()
			}
			time.Sleep(10 * time.Millisecond)
		}
		if gap := time.Since(last); gap < 5*time.Second || gap > dibs.DefaultTTL {
			t.Errorf("the second leader began %v after the first one's last tick", gap)
		}
		if err := first.IsLeader(t.Context()); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("the first leader says %v", err)
		}
		broken.down.Store(false)
		time.Sleep(time.Minute)
		second.Close()
		time.Sleep(time.Minute)
		testkit.Must(t, first.IsLeader(t.Context()))
	})
}

// TestElectorCloses: Close waits for the skew only if there was a tick within it, and does
// not wait for leadership.
func TestElectorCloses(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		first, second := newElector(t, store, 5*time.Second), newElector(t, store, 5*time.Second)
		testkit.Must(t, first.IsLeader(t.Context()))
		time.Sleep(3 * time.Second)
		for _, c := range []struct {
			elector *gocronlock.Elector
			takes   time.Duration
		}{{second, 0}, {first, 2 * time.Second}, {first, 0}, {newElector(t, store, 5*time.Second), 0}} {
			start := time.Now()
			c.elector.Close()
			if took := time.Since(start); took != c.takes {
				t.Errorf("Close took %v, want %v", took, c.takes)
			}
		}
	})
}

func TestNewElector(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		down := &failing{Store: store}
		down.down.Store(true)
		closed := newClient(t, store)
		testkit.Must(t, closed.Close())
		for name, c := range map[string]*dibs.Client{"no client": nil, "no store": newClient(t, down), "closed": closed} {
			if _, err := gocronlock.NewElector(t.Context(), c, "leader", 0); err == nil {
				t.Errorf("%s: there is no error", name)
			}
		}
		for _, skew := range []time.Duration{-1, dibs.DefaultTTL} {
			if _, err := gocronlock.NewElector(t.Context(), newClient(t, store), "leader", skew); err == nil {
				t.Errorf("a skew of %v: there is no error", skew)
			}
		}
		client := newClient(t, store)
		e, err := gocronlock.NewElector(t.Context(), client, "leader", 0)
		testkit.Must(t, err)
		testkit.Must(t, client.Close())
		if err := e.IsLeader(t.Context()); !errors.Is(err, dibs.ErrClosed) {
			t.Errorf("after the client was closed it says %v", err)
		}
		e.Close()
		down.down.Store(false)
	})
}
