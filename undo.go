package dibs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// undoer settles, in the background and by token, claims that nobody wants any
// more: those whose caller went away and those whose outcome is unknown. It
// tries until the store answers, and is not busy with the key, or until the lease and
// the place that may have been given have run out by themselves.
type undoer struct {
	store   Store
	size    int
	timeout time.Duration

	mu      sync.Mutex
	queue   []undo
	busy    []undo // those whose key the store was busy with: apart, as others need not wait for them
	taken   int    // out of the queue, being settled
	waiting bool   // one of those that run waits until a busy key is asked for again
	running int    // calls under way, or about to be
	closed  bool
	idle    chan struct{} // closed when closed and nothing is queued
	failed  error         // why the last call did, if it did

	life context.Context // ends when the undoer may do nothing any more
	end  context.CancelFunc
}

// undo is one claim to be settled.
type undo struct {
	settlement Settlement
	until      time.Time // when it has run out by itself
	// When the store was busy with its key: from when on it is settled again, after a
	// pause that grows.
	again time.Time
	pause time.Duration
}

// undoParallel is how many calls may be under way: what a network has swallowed takes
// until its time is up, and nobody else is to wait for that.
const undoParallel = 4

// maxUndo bounds the queue: beyond it the oldest run out by themselves.
const maxUndo = 1 << 16

// undoBackoff is how soon the undoer asks a store again that did not answer, or was busy
// with a key.
const (
	undoBackoffMin = 50 * time.Millisecond
	undoBackoffMax = time.Second
)

func newUndoer(store Store, b Batching, timeout time.Duration) *undoer {
	u := &undoer{
		store:   store,
		size:    cmp.Or(b.Size, defaultBatch),
		timeout: timeout,
		idle:    make(chan struct{}),
	}
	u.life, u.end = context.WithCancel(context.Background())
	return u
}

// orphan is called with the answer to a claim whose caller has gone away.
func (u *undoer) orphan(claim Claim, a Answer, err error) {
	if err != nil || a.State == Granted || a.Queued {
		u.undo(claim)
	}
}

// undo gives back what the claim may have got, as if it had never been sent.
func (u *undoer) undo(claim Claim) { u.add(claim, Undo) }

// release ends what the claim still has.
func (u *undoer) release(claim Claim) { u.add(claim, Release) }

// abandon ends what the claim may still have as a crash would.
func (u *undoer) abandon(claim Claim) { u.add(claim, Abandon) }

func (u *undoer) add(claim Claim, o Outcome) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed && u.running == 0 {
		return
	}
	if len(u.queue) >= maxUndo {
		u.queue = append(u.queue[:0], u.queue[1:]...)
	}
	u.queue = append(u.queue, undo{
		settlement: Settlement{Key: claim.Key, Token: claim.Token, Outcome: o},
		until:      time.Now().Add(max(claim.TTL, claim.Place) + u.timeout),
	})
	if u.running < undoParallel {
		u.running++
		go u.run()
	}
}

// run settles until nothing is queued.
func (u *undoer) run() {
	backoff := undoBackoffMin
	for {
		batch, wait := u.take()
		if len(batch) == 0 && wait == 0 {
			return
		}
		if len(batch) == 0 {
			u.rest(wait)
			u.mu.Lock()
			u.waiting = false
			u.mu.Unlock()
			continue
		}
		settlements := make([]Settlement, len(batch))
		for i, b := range batch {
			settlements[i] = b.settlement
		}
		errs := make([]error, len(batch))
		ctx, cancel := context.WithTimeout(u.life, u.timeout)
		err := u.store.Settle(ctx, settlements, errs)
		cancel()
		u.settled(batch, errs, err)
		if err == nil {
			backoff = undoBackoffMin
			continue
		}
		u.rest(backoff)
		backoff = min(backoff*2, undoBackoffMax)
	}
}

// rest waits for d, or until the undoer may do nothing any more.
func (u *undoer) rest(d time.Duration) {
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-u.life.Done():
	}
}

// settled notes what became of a batch: all of it is to be settled again after an err, and
// without one those whose key the store was busy with, as nothing was done for them.
func (u *undoer) settled(batch []undo, errs []error, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.taken -= len(batch)
	u.failed = err
	if err != nil {
		u.queue = append(batch, u.queue...)
		return
	}
	for i, b := range batch {
		if errors.Is(errs[i], ErrBusy) {
			b.pause = min(max(2*b.pause, undoBackoffMin), undoBackoffMax)
			b.again = time.Now().Add(b.pause)
			u.busy = append(u.busy, b)
			u.failed = errs[i]
		}
	}
}

// take takes what is to be settled next: those whose key the store was busy with if there
// are no others. Nothing ends the run, unless it is to wait for one of those.
func (u *undoer) take() (batch []undo, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.life.Err() != nil {
		u.queue, u.busy = nil, nil
	}
	now := time.Now()
	for len(u.queue) > 0 && len(batch) < u.size {
		if b := u.queue[0]; now.Before(b.until) {
			batch = append(batch, b)
		}
		u.queue = u.queue[1:]
	}
	if len(batch) == 0 {
		u.busy = slices.DeleteFunc(u.busy, func(b undo) bool {
			left := b.again.Sub(now)
			switch {
			case !now.Before(b.until):
				return true
			case left <= 0 && len(batch) < u.size:
				batch = append(batch, b)
				return true
			}
			if left = max(left, 1); wait == 0 || left < wait {
				wait = left
			}
			return false
		})
	}
	u.taken += len(batch)
	switch {
	case len(batch) > 0:
		return batch, 0
	case wait > 0 && !u.waiting:
		u.waiting = true
		return nil, wait
	}
	u.running--
	if u.closed && u.running == 0 {
		close(u.idle)
	}
	return nil, 0
}

// flush waits until everything is undone, or for the deadline, and ends the
// undoer. It returns how many claims were left, and why.
func (u *undoer) flush(deadline time.Time) (left int, why error) {
	u.mu.Lock()
	u.closed = true
	running := u.running > 0
	u.mu.Unlock()
	if running {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-u.idle:
		case <-timer.C:
		}
	}
	u.mu.Lock()
	left, why = len(u.queue)+len(u.busy)+u.taken, cmp.Or(u.failed, ErrStore)
	running = u.running > 0
	u.mu.Unlock()
	u.end()
	if running {
		<-u.idle
	}
	return left, why
}
