package sqlitestore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/store"
)

// call is one call of a Store's method on its way through the writing goroutine.
//
//	queued ──▶ applying ──▶ committing ──▶ finished
//	              ▲             │
//	              └─────────────┘ alone, when a shared transaction failed
//
// The caller's slices are read only while the call is applying; the answers are the
// call's own. So a caller whose context ends can leave in all other phases.
type call struct {
	// One of these four is set.
	claims      []store.Claim
	renewals    []store.Renewal
	settlements []store.Settlement
	work        func(*transaction)

	answers []store.Answer
	errs    []error
	err     error

	since time.Time
	done  chan struct{} // gets an element when the call is finished

	// Guarded by Store.mu.
	phase phase
	left  bool // the caller has left
}

type phase uint8

const (
	queued phase = iota
	applying
	committing
	finished
)

// elements is the number of elements in the call.
func (c *call) elements() int {
	n := len(c.claims) + len(c.renewals) + len(c.settlements)
	if c.work != nil {
		n++
	}
	return n
}

// bytes is about how many bytes the call writes.
func (c *call) bytes() int {
	n := 0
	for i := range c.settlements {
		n += len(c.settlements[i].Data)
	}
	for i := range c.renewals {
		n += len(c.renewals[i].Progress)
	}
	return n
}

// enqueue gives the call to the writing goroutine. It returns false when the store is
// closed.
func (s *Store) enqueue(c *call) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false
	}
	s.queue = append(s.queue, c)
	s.mu.Unlock()
	s.kick()
	return true
}

// kick wakes the writing goroutine.
func (s *Store) kick() {
	select {
	case s.calls <- struct{}{}:
	default:
	}
}

// leave is called when the caller's context has ended. It removes a call that has not
// begun from the queue. A call that has begun continues without its caller. nil means that
// the call is finished.
func (s *Store) leave(ctx context.Context, c *call) error {
	s.mu.Lock()
	for c.phase == applying { // it may be applied a second time
		if s.applied == nil {
			s.applied = make(chan struct{})
		}
		applied := s.applied
		s.mu.Unlock()
		<-applied
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	switch c.phase {
	case queued:
		s.queue = slices.DeleteFunc(s.queue, func(d *call) bool { return d == c })
		if s.blocked {
			return &FileError{Path: s.path, Err: fmt.Errorf("%w: %w", ErrLocked, ctx.Err())}
		}
		return ctx.Err()
	case finished:
		<-c.done
		return nil
	}
	c.left = true
	return ctx.Err()
}
