package dibs

import (
	"context"

	"github.com/dibs-go/dibs/store"
)

// Held reports whether a caller holds the key or waits for it, without taking it. The
// answer may be out of date when it arrives. Held returns ErrUnknown when an earlier
// lease's outcome is unknown, and otherwise ErrBusy, ErrClosed, ErrStore or the cause
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
