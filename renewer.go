package dibs

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/store"
)

// renewer renews the leases of a client and ends the contexts of lost ones. A lease is due
// a third of its TTL after it was last confirmed, and when it is no longer trusted. All
// leases that are due are renewed in one call, which waits for no other call.
type renewer struct {
	store   Store
	size    int
	timeout time.Duration

	mu      sync.Mutex
	leases  leaseHeap
	timer   *time.Timer
	armed   time.Time // when the timer fires; zero if it is not set
	closed  bool
	stopped bool
	empty   chan struct{} // closed when the client is closed and no lease is left
	calls   sync.WaitGroup
}

func newRenewer(s Store, b store.Batching, timeout time.Duration) *renewer {
	return &renewer{
		store:   s,
		size:    cmp.Or(b.Size, batch.DefaultSize),
		timeout: timeout,
		empty:   make(chan struct{}),
	}
}

// renewEvery is how long after its last confirmation a lease is renewed.
func renewEvery(ttl time.Duration) time.Duration { return ttl / 3 }

// retryEvery is how soon a renewal that failed for a passing reason is sent again.
func retryEvery(ttl time.Duration) time.Duration { return max(ttl/15, time.Millisecond) }

// add starts to renew a lease. It returns false if the client is closed.
func (r *renewer) add(l *Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	heap.Push(&r.leases, l)
	r.arm(l.due)
	return true
}

// remove stops renewing a lease.
func (r *renewer) remove(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(l)
}

// pause stops renewing a lease for a while. It is still lost when its trust is over.
func (r *renewer) pause(l *Lease) { l.paused.Store(true) }

// resume ends a pause.
func (r *renewer) resume(l *Lease) {
	l.paused.Store(false)
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.index < 0 {
		return
	}
	l.due = time.Now() // because it may have been due meanwhile
	heap.Fix(&r.leases, l.index)
	if !r.stopped {
		r.arm(l.due)
	}
}

// lose ends a lease's context because the lease is lost.
func (r *renewer) lose(l *Lease) {
	r.remove(l)
	l.end(ErrLost)
	l.ended(EventLost)
}

func (r *renewer) drop(l *Lease) {
	if l.index >= 0 {
		heap.Remove(&r.leases, l.index)
	}
	if r.closed && len(r.leases) == 0 && !r.stopped {
		r.stopped = true
		close(r.empty)
	}
}

// arm makes the timer fire at that moment or earlier.
func (r *renewer) arm(at time.Time) {
	if !r.armed.IsZero() && !at.Before(r.armed) {
		return
	}
	r.armed = at
	if r.timer == nil {
		r.timer = time.AfterFunc(time.Until(at), r.look)
		return
	}
	r.timer.Reset(time.Until(at))
}

// look renews or ends all leases that are due.
func (r *renewer) look() {
	var due, lost []*Lease
	defer func() {
		for _, l := range lost {
			r.lose(l) // outside the lock, because it calls the observer
		}
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return // the timer fired as it was stopped
	}
	r.armed = time.Time{}
	now := time.Now()
	for len(r.leases) > 0 {
		l := r.leases[0]
		// Leases that are due soon are renewed in the same call.
		if l.due.After(now.Add(retryEvery(l.lasts))) {
			break
		}
		trusted := l.until()
		switch {
		case !now.Before(trusted):
			r.drop(l)
			lost = append(lost, l)
			continue
		case l.paused.Load():
			l.due = trusted
		case !l.due.Before(trusted):
			// Its trust ends in a moment, before a renewal could help.
		default:
			l.due = trusted // without an answer by then it is lost
			due = append(due, l)
		}
		heap.Fix(&r.leases, 0)
		if l.due.Equal(trusted) && r.leases[0] == l {
			break // all others are due later
		}
	}
	for len(due) > 0 {
		n := min(len(due), r.size)
		batch := due[:n:n]
		due = due[n:]
		patience := r.timeout
		for _, l := range batch {
			patience = min(patience, renewEvery(l.lasts))
		}
		r.calls.Go(func() { r.renew(batch, patience) })
	}
	if len(r.leases) > 0 && !r.stopped {
		r.arm(r.leases[0].due)
	}
}

// renew asks the store to renew the leases. Two calls may renew one lease, after a pause.
func (r *renewer) renew(leases []*Lease, patience time.Duration) {
	renewals := make([]store.Renewal, len(leases))
	for i, l := range leases {
		renewals[i] = store.Renewal{Key: l.claim.Key, Token: l.claim.Token, TTL: l.claim.TTL}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	errs := make([]error, len(leases))
	sent := time.Now()
	callErr := r.store.Renew(ctx, renewals, errs)

	var lost []*Lease
	defer func() {
		for _, l := range lost {
			r.lose(l)
		}
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, l := range leases {
		if l.index < 0 {
			continue // settled meanwhile
		}
		switch {
		case callErr == nil && errs[i] == nil:
			l.trust(sent)
			l.lasts = l.claim.TTL
			l.due = l.renewAt(sent)
		case callErr == nil && errors.Is(errs[i], ErrLost) && !l.ending():
			r.drop(l)
			lost = append(lost, l)
			continue
		default:
			trusted := l.until()
			l.due = time.Now().Add(retryEvery(l.lasts))
			if l.due.After(trusted) {
				l.due = trusted
			}
		}
		heap.Fix(&r.leases, l.index)
	}
	if len(r.leases) > 0 && !r.stopped {
		r.arm(r.leases[0].due)
	}
}

// stop ends the contexts of all leases and waits for their holders to settle them. It
// renews them until the deadline, and returns how many are left then.
func (r *renewer) stop(deadline time.Time) int {
	r.mu.Lock()
	r.closed = true
	held := make([]*Lease, len(r.leases))
	copy(held, r.leases)
	if len(held) == 0 && !r.stopped {
		r.stopped = true
		close(r.empty)
	}
	r.mu.Unlock()
	for _, l := range held {
		l.end(ErrClosed)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-r.empty:
	case <-timer.C:
	}
	r.mu.Lock()
	left := len(r.leases)
	r.stopped = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.calls.Wait()
	return left
}

// leaseHeap orders leases by when they are due.
type leaseHeap []*Lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *leaseHeap) Push(x any) {
	l := x.(*Lease)
	l.index = len(*h)
	*h = append(*h, l)
}

func (h *leaseHeap) Pop() any {
	old := *h
	n := len(old) - 1
	l := old[n]
	old[n] = nil
	l.index = -1
	*h = old[:n]
	return l
}
