package sqllock

import (
	"context"
	"slices"
	"sync"
)

// turns has those who want one thing in this process wait for one another in the
// order in which they came, so that only one of them asks the server and has a
// connection for it.
type turns[K comparable] struct {
	mu sync.Mutex
	at map[K][]chan struct{} // who waits behind the one whose turn it is
}

// enter waits for the turn. It returns the context's cause when that ends first.
func (t *turns[K]) enter(ctx context.Context, key K) error {
	t.mu.Lock()
	behind, busy := t.at[key]
	if !busy {
		if t.at == nil {
			t.at = map[K][]chan struct{}{}
		}
		t.at[key] = nil
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	t.at[key] = append(behind, turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.at[key], turn); i >= 0 {
		t.at[key] = slices.Delete(t.at[key], i, i+1)
	} else { // it came meanwhile
		t.pass(key)
	}
	return context.Cause(ctx)
}

// leave ends the turn.
func (t *turns[K]) leave(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pass(key)
}

// pass gives the turn to the next. The caller has the mutex.
func (t *turns[K]) pass(key K) {
	behind := t.at[key]
	if len(behind) == 0 {
		delete(t.at, key)
		return
	}
	close(behind[0])
	t.at[key] = behind[1:]
}
