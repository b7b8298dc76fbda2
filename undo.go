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
	taken   int // out of the queue, being settled
	running int // calls under way, or about to be
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
	again      time.Time // not before; each is tried at its own pace, so that none waits for another
	pace       retry
}

// undoParallel is how many calls may be under way: what a network has swallowed takes
// until its time is up, and nobody else is to wait for that.
const undoParallel = 4

// maxUndo bounds the queue: beyond it the oldest run out by themselves.
const maxUndo = 1 << 16

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
		u.queue = slices.Delete(u.queue, 0, 1)
	}
	u.queue = append(u.queue, undo{
		settlement: Settlement{Key: claim.Key, Token: claim.Token, Outcome: o},
		until:      time.Now().Add(max(claim.TTL, claim.Stay)).Add(u.timeout), // as one duration they may overflow
	})
	if u.running < undoParallel {
		u.running++
		go u.run()
	}
}

// run settles until nothing is queued.
func (u *undoer) run() {
	for {
		batch, wait := u.take()
		switch {
		case len(batch) > 0:
			u.settle(batch)
		case wait > 0:
			pause := time.NewTimer(wait)
			select {
			case <-pause.C:
			case <-u.life.Done():
				pause.Stop()
			}
		default:
			return
		}
	}
}

// take takes what is to be settled next, or says how long to wait for that. If it does
// neither, the run is over.
func (u *undoer) take() (batch []undo, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if u.life.Err() != nil {
		u.queue = nil
	}
	u.queue = slices.DeleteFunc(u.queue, func(b undo) bool {
		left := b.again.Sub(now)
		switch {
		case !now.Before(b.until):
			return true
		case left <= 0 && len(batch) < u.size:
			batch = append(batch, b)
			return true
		case left > 0 && (wait == 0 || left < wait):
			wait = left
		}
		return false
	})
	u.taken += len(batch)
	if len(batch) == 0 && (wait == 0 || u.running > 1) { // one is enough to wait
		wait = 0
		u.running--
		if u.closed && u.running == 0 {
			close(u.idle)
		}
	}
	return batch, wait
}

// settle settles a batch, and queues again what the store did not answer or was too busy
// for.
func (u *undoer) settle(batch []undo) {
	settlements, errs := make([]Settlement, len(batch)), make([]error, len(batch))
	for i, b := range batch {
		settlements[i] = b.settlement
	}
	ctx, cancel := context.WithTimeout(u.life, u.timeout)
	err := u.store.Settle(ctx, settlements, errs)
	cancel()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.taken -= len(batch)
	u.failed = err
	for i, b := range batch {
		if err == nil && !errors.Is(errs[i], ErrBusy) {
			continue
		}
		u.failed = cmp.Or(err, errs[i])
		b.again = time.Now().Add(b.pace.next())
		u.queue = append(u.queue, b)
	}
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
	left, why = len(u.queue)+u.taken, cmp.Or(u.failed, ErrStore)
	running = u.running > 0
	u.mu.Unlock()
	u.end()
	if running {
		<-u.idle
	}
	return left, why
}
