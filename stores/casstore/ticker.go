package casstore

import (
	"context"
	"sync"
	"time"
)

// tickFor bounds how long a process moves the clock after it used a key. Holders renew their leases
// and waiters ask again before that, or nobody asks for the time.
const tickFor = time.Minute

// ticker moves the clock while the process uses keys that are held or waited for.
type ticker struct {
	mu      sync.Mutex
	running bool
	until   time.Time
}

// need has the clock moved until what is left, in microseconds, is over.
func (t *ticker) need(s *Store, left int64) {
	if left <= 0 || s.options.ReadOnly {
		return
	}
	d := time.Duration(min(left, tickFor.Microseconds())) * time.Microsecond
	t.mu.Lock()
	defer t.mu.Unlock()
	if until := time.Now().Add(d); until.After(t.until) {
		t.until = until
	}
	if !t.running {
		t.running = true
		s.server.Go(func(ctx context.Context) { t.run(ctx, s) })
	}
}

// run ticks until nothing needs the clock, or ctx ends.
func (t *ticker) run(ctx context.Context, s *Store) {
	every := time.NewTicker(s.options.Tick)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
		over := time.Now().After(t.until)
		t.running = !over
		t.mu.Unlock()
		next := s.options.Tick
		if over {
			next = 0
		}
		// An error is that of the engine, which calls return, too.
		tick, cancel := context.WithTimeout(ctx, max(10*s.options.Tick, 5*time.Second))
		_ = s.options.Clock.Tick(tick, next)
		cancel()
		if over {
			return
		}
	}
}
