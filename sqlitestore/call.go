package sqlitestore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// call is one call of a Store's method on its way through the writing goroutine.
//
//	queued ──▶ applying ──▶ committing ──▶ finished
//	              ▲             │
//	              └─────────────┘ alone, when a transaction that it shared failed
//
// The caller's slices are read while the call is applying, and at no other time;
// the answers are the call's own. So a caller whose context ends can leave in
// all phases but that short one.
type call struct {
	// One of the four is set.
	claims      []dibs.Claim
	renewals    []dibs.Renewal
	settlements []dibs.Settlement
	work        func(*transaction)

	answers []dibs.Answer
	errs    []error
	err     error

	since time.Time
	done  chan struct{} // holds one element when the call is finished

	// Guarded by Store.mu.
	phase phase
	left  bool // nobody waits for the call
}

type phase uint8

const (
	queued phase = iota
	applying
	committing
	finished
)

// elements is how much there is to do in the call.
func (c *call) elements() int {
	n := len(c.claims) + len(c.renewals) + len(c.settlements)
	if c.work != nil {
		n++
	}
	return n
}

// bytes is about how much the call writes.
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

// enqueue gives the call to the writing goroutine. It reports false when the
// store is closed.
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

// kick tells the writing goroutine that there is something to do.
func (s *Store) kick() {
	select {
	case s.calls <- struct{}{}:
	default:
	}
}

// leave is what a caller does when its context has ended: it takes a call that
// has not begun out of the queue, and turns its back on one that has. Nil means
// that the call is finished nevertheless.
func (s *Store) leave(ctx context.Context, c *call) error {
	s.mu.Lock()
	for c.phase == applying { // perhaps again, alone
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
