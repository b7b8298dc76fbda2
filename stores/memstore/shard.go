package memstore

import (
	"strings"
	"sync"

	"github.com/dibs-go/dibs/store"
)

// shard is a part of the keys under one lock.
type shard struct {
	mu      sync.Mutex
	store   *Store
	entries map[store.Key]*entry
	soonest int64         // nothing in an entry expires before
	woken   []store.Token // wake-ups to be sent after this step
	now     int64         // of this step
	fence   func() int64  // of the next grant

	unusedEntries unused[entry]
	unusedLives   unused[life]
}

// close stops the timers and deletes everything.
func (sh *shard) close() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, e := range sh.entries {
		if l := e.life; l != nil {
			l.entry = nil
			if l.timer != nil {
				l.timer.Stop()
			}
		}
	}
	sh.entries, sh.soonest = map[store.Key]*entry{}, never
}

// add returns a new entry for a key, or nil if there are too many.
func (sh *shard) add(k store.Key) *entry {
	if sh.store.keys.Add(1) > int64(sh.store.options.MaxKeys) {
		sh.store.keys.Add(-1)
		return nil
	}
	// Copied, because the caller's strings may be parts of larger ones.
	var b strings.Builder
	b.Grow(len(k.Namespace) + len(k.Name))
	b.WriteString(k.Namespace)
	b.WriteString(k.Name)
	n := len(k.Namespace)
	k = store.Key{Namespace: b.String()[:n], Name: b.String()[n:]}
	e := sh.unusedEntries.get()
	e.key = k
	sh.entries[k] = e
	return e
}

// remove deletes an idle entry.
func (sh *shard) remove(e *entry) {
	delete(sh.entries, e.key)
	sh.store.keys.Add(-1)
	*e = entry{}
	sh.unusedEntries.put(e)
}

// unused are a few values to be used again, because a lock that is taken and released should
// cost no garbage.
type unused[T any] []*T

func (u *unused[T]) get() *T {
	n := len(*u) - 1
	if n < 0 {
		return new(T)
	}
	v := (*u)[n]
	*u = (*u)[:n]
	return v
}

func (u *unused[T]) put(v *T) {
	if len(*u) < 32 {
		*u = append(*u, v)
	}
}
