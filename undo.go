package dibs

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// undoer settles, in the background and by token, claims that nobody wants any
// more: those whose caller went away and those whose outcome is unknown. It
// tries until the store answers or until the lease and the place that may have
// been given have run out by themselves.
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
}

// undoParallel is how many calls may be under way: what a network has swallowed takes
// until its time is up, and nobody else is to wait for that.
const undoParallel = 4

// maxUndo bounds the queue: beyond it the oldest run out by themselves.
const maxUndo = 1 << 16

// undoBackoff is how soon the undoer asks a store again that did not answer.
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
		settlement: Settlement{Key: claim.Key, Token: claim.Token, Redeems: claim.Redeems, Outcome: o},
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
		batch := u.take()
		if len(batch) == 0 {
			return
		}
		settlements := make([]Settlement, len(batch))
		for i, b := range batch {
			settlements[i] = b.settlement
		}
		ctx, cancel := context.WithTimeout(u.life, u.timeout)
		err := u.store.Settle(ctx, settlements, make([]error, len(batch)))
		cancel()
		u.mu.Lock()
		u.taken -= len(batch)
		u.failed = err
		if err != nil {
			u.queue = append(batch, u.queue...)
		}
		u.mu.Unlock()
		if err == nil {
			backoff = undoBackoffMin
			continue
		}
		pause := time.NewTimer(backoff)
		select {
		case <-pause.C:
		case <-u.life.Done():
		}
		pause.Stop()
		backoff = min(backoff*2, undoBackoffMax)
	}
}

// take takes what is to be settled next; nothing ends the run.
func (u *undoer) take() []undo {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	var batch []undo
	if u.life.Err() != nil {
		u.queue = nil
	}
	for len(u.queue) > 0 && len(batch) < u.size {
		if b := u.queue[0]; now.Before(b.until) {
			batch = append(batch, b)
		}
		u.queue = u.queue[1:]
	}
	u.taken += len(batch)
	if len(batch) == 0 {
		u.running--
		if u.closed && u.running == 0 {
			close(u.idle)
		}
	}
	return batch
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
