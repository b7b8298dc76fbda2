package idempotency

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// join answers a duplicate of a request that runs in this process. Any other request claims its
// key.
func (x *exchange) join() {
	original, w := x.m.duplicates.find(x.req.key, func(o *original) bool {
		return !o.fingerprint.Differs(x.req.fingerprint) && x.m.options.Wait > 0
	})
	switch {
	case original == nil:
		x.claim()
	case w != nil:
		x.wait(w)
	case original.fingerprint.Differs(x.req.fingerprint):
		x.refuseMismatch()
	default:
		x.refuseHeld(time.Since(original.began))
	}
}

// wait waits for the original, and answers as that was answered or claims the key.
func (x *exchange) wait(w waiter) {
	original := x.received(w)
	x.event.Waiting = time.Since(x.event.Start)
	switch {
	case original != nil && original.record != nil && !original.fingerprint.Differs(x.req.fingerprint):
		x.replay(original.record)
	case x.req.Context().Err() != nil:
		if original != nil {
			x.m.duplicates.pass(x.req.key, noOriginal())
		}
		x.canceled(x.inProgress(0))
	case original != nil:
		x.turn = true
		x.claim()
	default:
		x.refuseHeld(x.event.Waiting)
	}
}

// received returns what a waiter receives within Options.Wait; nil if that is nothing, or if the
// client goes away.
func (x *exchange) received(w waiter) *original {
	ctx, cancel := context.WithTimeout(x.req.Context(), x.m.options.Wait)
	defer cancel()
	select {
	case original := <-w:
		return original
	case <-ctx.Done():
		if x.m.duplicates.quit(x.req.key, w) {
			return nil
		}
		return <-w // at the same moment
	}
}

// An original is a request that runs in this process, as its duplicates see it.
type original struct {
	fingerprint dibs.Fingerprint
	lease       *dibs.Lease
	began       time.Time
	record      []byte // that it left; nil until then
}

// noOriginal returns what tells a waiter to claim the key.
func noOriginal() *original { return new(original) }

// A waiter is a duplicate that waits for its original. It receives one once: without a record, or if
// another request has run under the key, the waiter may claim the key.
type waiter chan *original

// duplicates are the originals in this process and the duplicates that wait for them, so that a
// waiting duplicate costs the store nothing. The store stays the truth: a key that is not here may be
// held elsewhere.
type duplicates struct {
	mu      sync.Mutex
	running map[string]*original
	waiting map[string][]waiter
}

// newDuplicates returns the table of a Middleware.
func newDuplicates() duplicates {
	return duplicates{running: make(map[string]*original), waiting: make(map[string][]waiter)}
}

// find returns the key's original; nil if there is none. If waits says so, it makes the caller wait
// for the original; otherwise the waiter is nil.
func (d *duplicates) find(key string, waits func(*original) bool) (*original, waiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.running[key]
	if o == nil {
		return nil, nil
	}
	// Not Lease.Err, which does not wait for the answer to a settlement, as a waiter does.
	if ctx := o.lease.Context(); ctx.Err() != nil && errors.Is(context.Cause(ctx), dibs.ErrLost) {
		return nil, nil // another request may have run since the lease was lost
	}
	if !waits(o) {
		return o, nil
	}
	w := make(waiter, 1)
	d.waiting[key] = append(d.waiting[key], w)
	return o, w
}

// quit ends the waiting of w. It reports false if w has received already.
func (d *duplicates) quit(key string, w waiter) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.waiting[key], w)
	if i < 0 {
		return false
	}
	d.setWaiting(key, slices.Delete(d.waiting[key], i, i+1))
	return true
}

// enter makes an original known.
func (d *duplicates) enter(key string, o *original) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[key] = o
}

// leave says that an original has ended. A record answers all waiters; without one the first of them
// claims the key.
func (d *duplicates) leave(key string, o *original, record []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running[key] == o {
		delete(d.running, key)
		o.record = record
		d.wake(key, o)
	}
}

// pass passes on what a waiter received and could not use.
func (d *duplicates) pass(key string, o *original) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running[key] == nil {
		d.wake(key, o)
	}
}

// wake answers all waiters with the original's record, or wakes the first if there is none.
func (d *duplicates) wake(key string, o *original) {
	n := len(d.waiting[key])
	if o.record == nil {
		n = min(n, 1)
	}
	for _, w := range d.waiting[key][:n] {
		w <- o
	}
	d.setWaiting(key, d.waiting[key][n:])
}

func (d *duplicates) setWaiting(key string, waiting []waiter) {
	if len(waiting) == 0 {
		delete(d.waiting, key)
		return
	}
	d.waiting[key] = waiting
}
