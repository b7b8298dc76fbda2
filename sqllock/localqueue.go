package sqllock

import (
	"context"
	"slices"
	"sync"
)

// localQueues serve the callers of this process in their order, key by key, so that only
// the first caller of a key asks the server and uses a connection.
type localQueues[K comparable] struct {
	mu sync.Mutex
	at map[K][]chan struct{} // the callers behind the first
}

// enter waits until the caller is first. It returns the context's cause when that ends
// before.
func (t *localQueues[K]) enter(ctx context.Context, key K) error {
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
	} else { // the turn came meanwhile
		t.pass(key)
	}
	return context.Cause(ctx)
}

// leave serves the next caller.
func (t *localQueues[K]) leave(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pass(key)
}

// pass serves the next caller, under the mutex.
func (t *localQueues[K]) pass(key K) {
	behind := t.at[key]
	if len(behind) == 0 {
		delete(t.at, key)
		return
	}
	close(behind[0])
	t.at[key] = behind[1:]
}
