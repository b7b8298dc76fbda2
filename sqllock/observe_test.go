package sqllock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// watcher keeps what it observes. Each event must have a context with its key.
type watcher struct {
	t      *testing.T
	key    any
	mu     sync.Mutex
	events []dibs.Event
}

func (w *watcher) observe(ctx context.Context, e dibs.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Value(w.key) == nil {
		w.t.Error("observed with another context")
	}
	w.events = append(w.events, e)
}

// kinds returns the kinds of the events.
func (w *watcher) kinds() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, e := range w.events {
		all = append(all, string(e.Kind))
	}
	return strings.Join(all, " ")
}

// TestObserve: each try and each end of a lock is observed once, with how long it took.
func TestObserve(t *testing.T) {
	t.Parallel()
	type spanKey struct{}
	ctx := context.WithValue(t.Context(), spanKey{}, true)
	seen := &watcher{t: t, key: spanKey{}}
	a := newAdvisory(t, &AdvisoryOptions{Observe: seen.observe})
	key := ownKey()
	const wait = 30 * time.Millisecond
	testkit.Must(t, a.Do(ctx, key, nil, func(context.Context) error {
		if _, err := a.Lock(ctx, key, &LockOptions{Wait: wait}); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("a second holder: %v", err)
		}
		return nil
	}))
	l, err := a.Lock(ctx, key, nil)
	testkit.Must(t, err)
	postgres().Query(fmt.Sprintf("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND %s", lockOf(key)))
	<-l.Context().Done()
	testkit.Eventually(t, "the loss is observed", func() bool { return strings.Contains(seen.kinds(), "lost") })
	if err := l.Unlock(); !errors.Is(err, dibs.ErrLost) {
		t.Errorf("unlocked with %v", err)
	}
	if got := seen.kinds(); got != "acquired refused released acquired lost" {
		t.Fatalf("observed %s", got)
	}
	digest := dibs.Key{Name: l.String()}.Digest()
	for _, e := range seen.events {
		if e.Key() != digest {
			t.Errorf("%s has the key %s; want %s", e.Kind, e.Key(), digest)
		}
	}
	if e := seen.events[1]; e.Waited < wait || !errors.Is(e.Err, dibs.ErrHeld) {
		t.Errorf("refused after %v: %v", e.Waited, e.Err)
	}
	if e := seen.events[2]; e.Held < wait || e.Settled <= 0 || e.Settled > e.Held || e.Err != nil {
		t.Errorf("released after %v, of which %v: %v", e.Held, e.Settled, e.Err)
	}
	if e := seen.events[4]; !errors.Is(e.Err, dibs.ErrLost) {
		t.Errorf("lost with %v", e.Err)
	}
	seen.events = nil
	n := newNamed(t, ownDSN(mariadb()), &NamedOptions{Observe: seen.observe})
	testkit.Must(t, n.Do(ctx, "a", nil, func(context.Context) error { return nil }))
	if got := seen.kinds(); got != "acquired released" {
		t.Errorf("observed %s", got)
	}
}

// lockOf returns the condition that finds the lock in pg_locks.
func lockOf(key AdvisoryKey) string {
	class, object, sub := key.inLocks()
	return fmt.Sprintf("classid = %d AND objid = %d AND objsubid = %d", class, object, sub)
}
