package sqllock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/testkit"
)

// TestObserve: each attempt and each end of a lock is observed once, with how long it took.
func TestObserve(t *testing.T) {
	t.Parallel()
	type spanKey struct{}
	ctx := context.WithValue(t.Context(), spanKey{}, true)
	var mu sync.Mutex
	var seen []dibs.Event
	observe := func(ctx context.Context, e dibs.Event) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Value(spanKey{}) == nil {
			t.Error("observed with another context")
		}
		seen = append(seen, e)
	}
	kinds := func() (all []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range seen {
			all = append(all, string(e.Kind))
		}
		return all
	}
	a := newAdvisory(t, &AdvisoryOptions{Observe: observe})
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
	testkit.Eventually(t, "the loss is observed", func() bool { return slices.Contains(kinds(), "lost") })
	if err := l.Unlock(); !errors.Is(err, dibs.ErrLost) {
		t.Errorf("unlocked with %v", err)
	}
	if got := strings.Join(kinds(), " "); got != "acquired refused released acquired lost" {
		t.Fatalf("observed %s", got)
	}
	digest := dibs.Key{Name: l.String()}.Digest()
	for _, e := range seen {
		if e.Key() != digest {
			t.Errorf("%s has the key %s; want %s", e.Kind, e.Key(), digest)
		}
	}
	if e := seen[1]; e.Waited < wait || !errors.Is(e.Err, dibs.ErrHeld) {
		t.Errorf("refused after %v: %v", e.Waited, e.Err)
	}
	if e := seen[2]; e.Held < wait || e.Settled <= 0 || e.Settled > e.Held || e.Err != nil {
		t.Errorf("released after %v, of which %v: %v", e.Held, e.Settled, e.Err)
	}
	if e := seen[4]; !errors.Is(e.Err, dibs.ErrLost) {
		t.Errorf("lost with %v", e.Err)
	}
	seen = nil
	n := newNamed(t, ownDSN(mariadb()), &NamedOptions{Observe: observe})
	testkit.Must(t, n.Do(ctx, "a", nil, func(context.Context) error { return nil }))
	if got := strings.Join(kinds(), " "); got != "acquired released" {
		t.Errorf("observed %s", got)
	}
}

// lockOf returns the condition that finds the lock in pg_locks.
func lockOf(key AdvisoryKey) string {
	class, object, sub := key.inLocks()
	return fmt.Sprintf("classid = %d AND objid = %d AND objsubid = %d", class, object, sub)
}
