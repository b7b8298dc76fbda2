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
	ends    int64 // by the clock, of what ends last
	until   time.Time
}

// need has the clock moved until it is ends.
func (t *ticker) need(s *Store, ends, now int64) {
	if ends <= now || s.options.ReadOnly {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ends, t.until = max(t.ends, ends), time.Now().Add(tickFor)
	if !t.running {
		t.running, t.ends = true, ends
		s.server.Go(func(ctx context.Context) { t.run(ctx, s) })
	}
}

// run ticks until nothing needs the clock, or ctx ends.
func (t *ticker) run(ctx context.Context, s *Store) {
	every := time.NewTicker(s.options.Tick)
	defer every.Stop()
	for now := int64(0); ; {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
		over := now >= t.ends || time.Now().After(t.until)
		t.running = !over
		t.mu.Unlock()
		next := s.options.Tick
		if over {
			next = 0
		}
		// An error is that of the engine, which calls return, too.
		tick, cancel := context.WithTimeout(ctx, max(10*s.options.Tick, 5*time.Second))
		now, _ = s.options.Clock.Tick(tick, next)
		cancel()
		if over {
			return
		}
	}
}
