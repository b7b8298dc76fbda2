package dibs

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/store"
)

// undoParallel is how many calls may be under way. A call that the network has lost takes
// until its timeout, and the others must not wait for it.
const undoParallel = 4

// maxUndo bounds the claims that wait to be undone. What is beyond it expires by itself.
const maxUndo = 1 << 14

// undoer settles in the background, by token, the claims that no caller uses any more: the
// caller stopped waiting, or the outcome is unknown. It asks until the store has answered,
// or until the lease and the place that the claim may have got have expired.
type undoer struct {
	settles *batch.Batcher[store.Settlement, error]
	timeout time.Duration
	ctx     context.Context // ends when the undoer may not call the store any more
	end     context.CancelFunc

	mu      sync.Mutex
	pending int
	failed  error         // why the last call failed, if it did
	idle    chan struct{} // closed when pending is 0; nil unless flush waits
}

func newUndoer(s Store, b store.Batching, timeout time.Duration) *undoer {
	u := &undoer{timeout: timeout}
	u.ctx, u.end = context.WithCancel(context.Background())
	u.settles = batch.New(u.ctx, batch.Options{Size: b.Size, Parallel: undoParallel}, timeout, s.Settle)
	return u
}

// answered gets the answer to a claim whose caller does not wait for it any more.
func (u *undoer) answered(claim store.Claim, a store.Answer, err error) {
	if err != nil || a.State == store.Granted || a.Queued {
		u.undo(claim)
	}
}

// undo gives back what the claim may have got, as if it had never been sent.
func (u *undoer) undo(claim store.Claim) { u.add(claim, store.Undo) }

// release ends what the claim still has.
func (u *undoer) release(claim store.Claim) { u.add(claim, store.Release) }

// abandon ends what the claim may still have, as a crash would.
func (u *undoer) abandon(claim store.Claim) { u.add(claim, store.Abandon) }

func (u *undoer) add(claim store.Claim, o store.Outcome) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ctx.Err() != nil || u.pending >= maxUndo {
		return
	}
	u.pending++
	// Added one by one, because their sum may overflow.
	expires := time.Now().Add(max(claim.TTL, claim.PlaceTTL)).Add(u.timeout)
	go u.settle(store.Settlement{Key: claim.Key, Token: claim.Token, Outcome: o}, expires)
}

// settle settles one claim.
func (u *undoer) settle(s store.Settlement, expires time.Time) {
	ctx, cancel := context.WithDeadline(u.ctx, expires)
	defer cancel()
	for next := retry(ctx, nil, time.Now()); ctx.Err() == nil; next(anyWait) {
		err, _, callErr := u.settles.Do(ctx, nil, s, nil)
		if errors.Is(callErr, batch.ErrGaveUp) {
			break
		}
		again := callErr != nil || errors.Is(err, ErrBusy)
		u.mu.Lock()
		u.failed = nil
		if again {
			u.failed = cmp.Or(callErr, err)
		}
		u.mu.Unlock()
		if !again {
			break
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending--; u.pending == 0 && u.idle != nil {
		close(u.idle)
		u.idle = nil
	}
}

// flush waits until everything is undone, or for the deadline, and ends the undoer. It
// returns how many claims are left, and why.
func (u *undoer) flush(deadline time.Time) (left int, why error) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	select {
	case <-u.settled():
	case <-ctx.Done():
	}
	u.mu.Lock()
	left, why = u.pending, cmp.Or(u.failed, ErrStore)
	u.end() // under the lock, so that nothing is added after it
	u.mu.Unlock()
	<-u.settled()
	<-u.settles.Idle()
	return left, why
}

// settled returns a channel that is closed when nothing is left to be undone.
func (u *undoer) settled() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.idle == nil {
		u.idle = make(chan struct{})
	}
	idle := u.idle
	if u.pending == 0 {
		close(idle)
		u.idle = nil
	}
	return idle
}
