package dibs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/store"
)

// A request is a claim and what its caller wants of the lease.
type request struct {
	store.Claim
	// parent is what the lease's context derives from.
	parent context.Context
	// margin and longest are those of AcquireOptions.
	margin, longest time.Duration
	// start and queued are for the observer: when it was made, and that it waits.
	start  time.Time
	queued bool
	// kept says that the place was there before, so that there is nothing to undo.
	kept bool
}

// Held reports whether a caller holds the key or waits for it, without taking it. The
// answer may be out of date when it arrives. Held returns ErrUnknown when an earlier
// attempt's outcome is unknown, and otherwise ErrBusy, ErrClosed, ErrStore or the cause
// with which ctx ended.
func (c *Client) Held(ctx context.Context, key string) (bool, error) {
	claim, err := c.newClaim(key, nil)
	if err != nil {
		return false, err
	}
	claim.Mode = store.Look
	a, _, err := c.ask(ctx, request{Claim: claim}, noWait)
	switch {
	case err != nil:
		return false, err
	case a.State == store.Held:
		return true, nil
	case a.State == store.Free:
		return false, nil
	}
	return false, refusal(claim, a)
}

// Record returns the record that the key's last finished holder left behind, without
// taking the key. ok is false if there is none. The data is what Complete was given; Once
// has a form of its own. The errors are ErrBusy, ErrClosed, ErrStore or the cause with
// which ctx ended.
func (c *Client) Record(ctx context.Context, key string) (r Record, ok bool, err error) {
	claim, err := c.newClaim(key, nil)
	if err != nil {
		return r, false, err
	}
	claim.Mode, claim.MaxAge = store.Look, AnyAge
	a, _, err := c.ask(ctx, request{Claim: claim}, noWait)
	return a.Record, err == nil && a.State == store.Done, err
}

// ask sends one claim. It returns what the store said and when the claim was sent. A claim
// that failed is sent again for askPatience, which is safe because claims are idempotent.
// A claim that found the store busy is sent again for as long as the caller would wait. On
// any error the request is undone.
func (c *Client) ask(ctx context.Context, r request, wait time.Duration) (a store.Answer, sent time.Time, err error) {
	if c.closed.Load() {
		return a, sent, ErrClosed
	}
	if ctx.Err() != nil {
		return a, sent, context.Cause(ctx)
	}
	var again func(time.Duration) bool
	unknown := false
	for {
		a, sent, err = c.claims.Do(ctx, c.done, r.Claim, c.lateOf(r))
		if err == nil && a.Err == nil {
			return a, sent, nil
		}
		if errors.Is(err, batch.ErrGaveUp) || err == nil && !errors.Is(a.Err, ErrBusy) {
			break
		}
		patience := askPatience
		if err == nil {
			patience = wait
		}
		unknown = unknown || err != nil
		if again == nil {
			again = retry(ctx, c.done, sent)
		}
		if !again(patience) {
			break
		}
	}
	if unknown {
		c.undo(r)
	}
	switch {
	case c.closed.Load():
		err = ErrClosed
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err != nil:
		err = &StoreError{Op: "claim", Err: err}
	default:
		err = a.Err
	}
	return a, sent, err
}

// grant makes the lease of a granted request.
func (c *Client) grant(r request, a store.Answer, sent time.Time) (*Lease, error) {
	return c.begin(newLease(&c.keeper, r, a, sent), r)
}

// grantPushed makes the lease of a pushed grant that came after the answer to what was sent
// at that moment.
func (c *Client) grantPushed(r request, pushed store.Answer, sent time.Time) (*Lease, error) {
	return c.begin(newPushedLease(&c.keeper, r, pushed, sent), r)
}

// begin starts to renew a new lease.
func (c *Client) begin(lease *Lease, r request) (*Lease, error) {
	if lease.overdue() {
		lease.end(ErrLost)
		c.undoer.undo(r.Claim)
		return nil, &StoreError{Op: "claim", Err: errors.New("the answer took longer than the lease lasts")}
	}
	if !c.renewer.add(lease) {
		lease.end(ErrClosed)
		c.undoer.undo(r.Claim)
		return nil, ErrClosed
	}
	return lease, nil
}

// undo gives up a request whose outcome is unknown, or whose turn its caller does not wait
// for any more.
func (c *Client) undo(r request) {
	if c.lateOf(r) != nil {
		c.undoer.undo(r.Claim)
	}
}

// lateOf returns what gets the answer when the caller does not wait for it any more.
func (c *Client) lateOf(r request) func(store.Claim, store.Answer, error) {
	if r.Mode == store.Look || r.kept {
		return nil
	}
	return c.late
}

// refusal turns an answer that is not a grant into the caller's error.
func refusal(claim store.Claim, a store.Answer) error {
	switch a.State {
	case store.Held:
		return &HeldError{Key: claim.Key, Left: a.Left, Ahead: a.Ahead}
	case store.Done:
		return &DoneError{Key: claim.Key, Record: a.Record}
	case store.Mismatch:
		return ErrMismatch
	case store.Unknown:
		return &UnknownError{Key: claim.Key, ID: a.ID}
	}
	return &StoreError{Op: "claim", Err: fmt.Errorf("the store answered with state %d", a.State)}
}
