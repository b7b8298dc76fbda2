package dibs

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/store"
)

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
	return newLease(&c.keeper, r, a, sent).begin()
}

// grantPushed makes the lease of a pushed grant that came after the answer to what was sent
// at that moment.
func (c *Client) grantPushed(r request, pushed store.Answer, sent time.Time) (*Lease, error) {
	return newPushedLease(&c.keeper, r, pushed, sent).begin()
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
