package idempotency

import (
	"errors"
	"sync/atomic"
)

// Event.Err of a request that a bound refused names the bound.
var (
	errMaxConcurrent = errors.New("idempotency: MaxConcurrent is reached")
	errMaxBodyMemory = errors.New("idempotency: MaxBodyMemory is reached")
)

// A capacity limits how much of something is in use at once. A nil capacity has no limit.
type capacity struct {
	most int64
	used atomic.Int64
}

// newCapacity returns a capacity; nil if most is 0.
func newCapacity(most int64) *capacity {
	if most == 0 {
		return nil
	}
	return &capacity{most: most}
}

// take reports whether there is room for n more, and takes it. The caller gives it back.
func (c *capacity) take(n int64) bool {
	if c == nil {
		return true
	}
	for {
		used := c.used.Load()
		if used > c.most-n {
			return false
		}
		if c.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// full reports whether there is no room for one more.
func (c *capacity) full() bool { return c != nil && c.used.Load() >= c.most }

// give gives back what was taken.
func (c *capacity) give(n int64) {
	if c != nil {
		c.used.Add(-n)
	}
}

// A reservation is what one request has taken of a capacity.
type reservation struct {
	of *capacity
	n  int64
}

// grow reports whether there is room for n more, and takes it.
func (r *reservation) grow(n int64) bool {
	if !r.of.take(n) {
		return false
	}
	r.n += n
	return true
}

// shrink gives back all but n.
func (r *reservation) shrink(n int64) {
	if r.n > n {
		r.of.give(r.n - n)
		r.n = n
	}
}

// end gives everything back.
func (r *reservation) end() { r.shrink(0) }
