// Package memory bounds the memory of what clients send and are sent: one budget for all that a
// process has under way.
package memory

import (
	"container/list"
	"context"
	"math"
	"runtime/debug"
	"slices"
	"sync"
)

// Fallback is the bound of a process that has no GOMEMLIMIT, in bytes.
const Fallback = 256 << 20

// Limit returns the default of a bound, in bytes: half of GOMEMLIMIT, and Fallback without one.
// The other half is for the collector of garbage, the stacks of goroutines and the store's client.
func Limit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit > 0 && limit < math.MaxInt64 {
		return max(limit/2, 1)
	}
	return Fallback
}

// A Budget is a weighted semaphore of bytes. Accounts wait for room in the order in which they ask.
// It is safe for concurrent use.
type Budget struct {
	mu      sync.Mutex
	most    int64
	used    int64
	over    *Account  // the account that may exceed most; nil: none
	waiting list.List // of *waiter
}

type waiter struct {
	account *Account
	n       int64
	ready   chan struct{} // closed when it has the room
}

// New returns a Budget of most bytes.
func New(most int64) *Budget { return &Budget{most: most} }

// Most returns how many bytes there are.
func (b *Budget) Most() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most
}

// resize changes how many bytes there are. What is taken stays.
func (b *Budget) resize(most int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = most
	b.serve()
}

// Used returns how many bytes are taken. It can be more than Most, see Account.Wait.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// take takes n bytes, if there is room and no other account waits for it.
func (b *Budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && (b.waiting.Len() > 0 || b.used > b.most-n) {
		return false
	}
	b.used += n
	return true
}

// wait takes n bytes for an account when there is room, or when the account may exceed the bound. It
// returns the cause if ctx ends first.
func (b *Budget) wait(ctx context.Context, a *Account, n int64) error {
	b.mu.Lock()
	if n == 0 || a.exceeds || b.waiting.Len() == 0 && b.fits(a, n) {
		b.used += n
		b.mu.Unlock()
		return nil
	}
	w := &waiter{a, n, make(chan struct{})}
	at := b.waiting.PushBack(w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready: // at the same moment
		return nil
	default:
		b.waiting.Remove(at)
		b.serve() // the next one may ask for less
		return context.Cause(ctx)
	}
}

// fits reports whether n more bytes may be taken for the account, with the lock held. One account at
// a time may exceed the bound: otherwise accounts that have a part of what they need would wait for
// one another.
func (b *Budget) fits(a *Account, n int64) bool {
	if b.used > b.most-n && b.over == nil {
		b.over, a.exceeds = a, true
	}
	return b.used <= b.most-n || a.exceeds
}

// give gives n bytes back. full says that the account needs no more for now.
func (b *Budget) give(a *Account, n int64, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if full && b.over == a {
		b.over = nil
	}
	b.serve()
}

// serve gives room to the accounts in front, with the lock held.
func (b *Budget) serve() {
	for at := b.waiting.Front(); at != nil; at = b.waiting.Front() {
		w := at.Value.(*waiter)
		if !b.fits(w.account, w.n) {
			return
		}
		b.used += w.n
		b.waiting.Remove(at)
		close(w.ready)
	}
}

// An Account is what one request has taken, of one budget or of several at once, such as that of its
// credential and that of all. The zero Account has no bound. It is not safe for concurrent use.
type Account struct {
	of      []*Budget
	n       int64
	exceeds bool // it may exceed all its budgets, because it may exceed one
}

// Open returns an account of the budgets. All accounts that share two of them name them in the same
// order. It must not be copied while it has bytes.
func Open(of ...*Budget) Account { return Account{of: of} }

// Held returns how many bytes the account has.
func (a *Account) Held() int64 { return a.n }

// Most returns how many bytes the account can ever have without exceeding a bound.
func (a *Account) Most() int64 {
	most := int64(math.MaxInt64)
	for _, b := range a.of {
		most = min(most, b.Most())
	}
	return most
}

// Try takes n more bytes, and reports whether there was room.
func (a *Account) Try(n int64) bool {
	for i, b := range a.of {
		if !b.take(n) {
			for _, taken := range slices.Backward(a.of[:i]) {
				taken.give(a, n, false)
			}
			return false
		}
	}
	a.n += n
	return true
}

// Wait takes n more bytes when there is room. It is for what has happened already and cannot be
// refused: so that it always ends, one account at a time may exceed the bound. It returns the cause
// if ctx ends first. The account may exceed the bound until Keep or Close.
func (a *Account) Wait(ctx context.Context, n int64) error {
	for i, b := range a.of {
		if err := b.wait(ctx, a, n); err != nil {
			for _, taken := range slices.Backward(a.of[:i]) {
				taken.give(a, n, false)
			}
			return err
		}
	}
	a.n += n
	return nil
}

// Owe takes n more bytes, even if there is no room: they are in memory already.
func (a *Account) Owe(n int64) {
	for _, b := range a.of {
		b.give(a, -n, false)
	}
	a.n += n
}

// Keep gives back all but n bytes. The account is full then: another one may exceed the bound.
func (a *Account) Keep(n int64) {
	n = min(n, a.n)
	for _, b := range slices.Backward(a.of) {
		b.give(a, a.n-n, true)
	}
	a.n, a.exceeds = n, false
}

// Close gives everything back. The account can be used again.
func (a *Account) Close() { a.Keep(0) }
