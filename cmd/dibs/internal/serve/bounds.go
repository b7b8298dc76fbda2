package serve

import (
	"sync"
	"sync/atomic"
)

// load is what is under way for one credential, or for all.
type load struct{ calls, waiters atomic.Int64 }

// take counts n more, unless that is more than most.
func take(n *atomic.Int64, by, most int64) bool {
	if n.Add(by) > most {
		n.Add(-by)
		return false
	}
	return true
}

// budget is the memory that calls may take.
type budget struct {
	mu   sync.Mutex
	left int64
}

func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return false
	}
	b.left -= n
	return true
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}

// owe takes n, even if there is less. Then nothing else is taken until it was given back.
func (b *budget) owe(n int64) { b.give(-n) }

// spent reports whether nothing is left.
func (b *budget) spent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left <= 0
}
