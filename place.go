package dibs

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Place is a place in a key's queue, reserved now and redeemed later, perhaps in another
// process. It is a secret, because its token is enough to redeem it.
type Place struct {
	Key   Key
	Token store.Token
}

// placeVersion is the first field of a place's text.
const placeVersion = "dibs1"

// MarshalText writes the place in printable ASCII without spaces.
func (p Place) MarshalText() ([]byte, error) {
	enc := base64.RawURLEncoding.EncodeToString
	return []byte(strings.Join([]string{
		placeVersion, enc(p.Token[:]), enc([]byte(p.Key.Namespace)), enc([]byte(p.Key.Name)),
	}, ".")), nil
}

// UnmarshalText reads what MarshalText wrote.
func (p *Place) UnmarshalText(text []byte) error {
	parts := strings.Split(string(text), ".")
	if len(parts) != 4 || parts[0] != placeVersion {
		return errors.New("dibs: not the text of a place of version " + placeVersion)
	}
	var fields [3][]byte
	for i, part := range parts[1:] {
		b, err := base64.RawURLEncoding.Strict().DecodeString(part)
		if err != nil {
			return fmt.Errorf("dibs: not the text of a place: %w", err)
		}
		fields[i] = b
	}
	q := Place{Key: Key{Namespace: string(fields[1]), Name: string(fields[2])}}
	if copy(q.Token[:], fields[0]) != len(q.Token) || len(fields[0]) != len(q.Token) {
		return errors.New("dibs: not the text of a place: its token has another length")
	}
	if err := q.Key.Validate(); err != nil {
		return err
	}
	// The decoder skips line ends, but a place has only one text.
	if again, err := q.MarshalText(); err != nil || string(again) != string(text) {
		return errors.New("dibs: not the text of a place: it is not written as a place is")
	}
	*p = q
	return nil
}

// PlaceOptions are how a place is reserved. The zero value and nil mean the defaults.
type PlaceOptions struct {
	// Grace is how long the place may keep other callers from a free key while no caller
	// redeems it. It counts from the moment when the first of them could have had the key
	// without the reserved place. Default: until the place expires.
	Grace time.Duration

	// Label tells operators what the place is for. Default: the client's.
	Label string
}

// Reserve takes a place in the key's queue without waiting there. The place lasts for ttl.
// Until it is redeemed, cancelled or expired, no caller behind it gets the key, but a free
// key waits for it for at most Grace.
//
// Reserve returns the place and its status, or ErrUnknown, ErrFull, ErrBusy, ErrClosed,
// ErrStore or the cause with which ctx ended.
func (c *Client) Reserve(ctx context.Context, key string, ttl time.Duration, o *PlaceOptions) (Place, PlaceStatus, error) {
	p := Place{Key: c.Key(key), Token: store.NewToken()}
	status, err := c.reserve(ctx, p, ttl, o, false)
	if err != nil {
		return Place{}, PlaceStatus{}, err
	}
	return p, status, nil
}

// Prolong makes a reserved place last for ttl from now, with the Grace of these options. It
// may also be called while a lease of the place is held: the values then count when that
// lease is abandoned. A place that has ended is reserved again, at the end of the queue.
//
// It returns the status of the place. The errors are those of Reserve.
func (c *Client) Prolong(ctx context.Context, p Place, ttl time.Duration, o *PlaceOptions) (PlaceStatus, error) {
	return c.reserve(ctx, p, ttl, o, true)
}

// reserve reserves the place. kept says that it may have been there before.
func (c *Client) reserve(ctx context.Context, p Place, ttl time.Duration, o *PlaceOptions, kept bool) (PlaceStatus, error) {
	claim, err := c.reservation(p, ttl, o)
	if err != nil {
		return PlaceStatus{}, err
	}
	c.enter()
	defer c.leave()
	a, _, err := c.ask(ctx, request{Claim: claim, kept: kept}, noWait)
	switch {
	case err != nil:
		return PlaceStatus{}, err
	case a.State == store.Held && a.Queued:
		return PlaceStatus{Exists: true, Ahead: a.Ahead}, nil
	}
	return PlaceStatus{}, refusal(claim, a)
}

// reservation is the claim that reserves the place.
func (c *Client) reservation(p Place, ttl time.Duration, o *PlaceOptions) (store.Claim, error) {
	claim, err := c.newClaim(p.Key.Name, nil)
	switch {
	case err != nil:
		return claim, err
	case ttl < store.MinDuration:
		return claim, fmt.Errorf("dibs: a place cannot be reserved for %v; at least %v", ttl, store.MinDuration)
	case o != nil && o.Grace < 0:
		return claim, fmt.Errorf("dibs: PlaceOptions.Grace is %v; it must not be negative", o.Grace)
	}
	claim.Key, claim.Token, claim.Mode, claim.PlaceTTL = p.Key, p.Token, store.Reserve, ttl
	if o != nil {
		claim.Grace, claim.Owner.Label = o.Grace, cmp.Or(o.Label, claim.Owner.Label)
	}
	return claim, nil
}

// ReserveIn is Reserve in a transaction: the place exists if and when the transaction
// commits.
func (c *Client) ReserveIn(ctx context.Context, r Reserver, key string, ttl time.Duration, o *PlaceOptions) (Place, error) {
	p := Place{Key: c.Key(key), Token: store.NewToken()}
	claim, err := c.reservation(p, ttl, o)
	if err != nil {
		return Place{}, err
	}
	return p, r.Reserve(ctx, []store.Claim{claim})
}

// PlaceStatus is the status of a reserved place in its key's queue.
type PlaceStatus struct {
	// Exists is false when the place has ended: it was cancelled, its lease was released,
	// or it expired.
	Exists bool
	// Ahead is how many places at most come before it; 0 when it is next.
	Ahead int
}

// PlaceStatus returns the status of a reserved place and changes nothing. The errors are
// ErrUnknown, ErrBusy, ErrClosed, ErrStore or the cause with which ctx ended.
func (c *Client) PlaceStatus(ctx context.Context, p Place) (PlaceStatus, error) {
	claim, err := c.newClaim(p.Key.Name, nil)
	if err != nil {
		return PlaceStatus{}, err
	}
	claim.Key, claim.Mode, claim.From = p.Key, store.Look, p.Token
	a, _, err := c.ask(ctx, request{Claim: claim}, noWait)
	switch {
	case err != nil:
		return PlaceStatus{}, err
	case a.State == store.Held || a.State == store.Free:
		return PlaceStatus{Exists: a.Queued, Ahead: a.Ahead}, nil
	}
	return PlaceStatus{}, refusal(claim, a)
}

// RedeemOptions are what Redeem asks for. The zero value and nil mean the defaults.
type RedeemOptions struct {
	AcquireOptions

	// Grace replaces that of the place. It counts when the lease is abandoned or lost.
	// Default: what it was before.
	Grace time.Duration
}

// Redeem takes the key at a reserved place, and waits for its turn as Acquire does. If it
// gives up waiting (Wait, the end of ctx), the place stays and Redeem can be called again.
// If the place has ended, the caller joins the queue at the end.
//
// If two callers redeem one place at once, one waits for the other. Release and Complete
// end the place together with the lease. A record that answers and ErrMismatch end it, too.
// After Abandon, Undo, a crash or a loss the place is in front again and can be redeemed
// again. The errors are those of Acquire.
func (c *Client) Redeem(ctx context.Context, p Place, o *RedeemOptions) (*Lease, error) {
	if o == nil {
		o = &RedeemOptions{}
	}
	return c.redeem(ctx, p, o, c.waitOf(&o.AcquireOptions))
}

// TryRedeem is Redeem without waiting: it returns ErrHeld at once if the place has to wait
// for its turn, and the place stays. If the place has ended, it takes the key if it is free.
// Of the options, Wait must be 0.
func (c *Client) TryRedeem(ctx context.Context, p Place, o *RedeemOptions) (*Lease, error) {
	if o == nil {
		o = &RedeemOptions{}
	}
	if o.Wait != 0 {
		return nil, errors.New("dibs: AcquireOptions.Wait is not for TryRedeem, which does not wait")
	}
	return c.redeem(ctx, p, o, noWait)
}

func (c *Client) redeem(ctx context.Context, p Place, o *RedeemOptions, wait time.Duration) (*Lease, error) {
	claim, err := c.newClaim(p.Key.Name, &o.AcquireOptions)
	switch {
	case err != nil:
		return nil, err
	case o.Grace < 0:
		return nil, fmt.Errorf("dibs: RedeemOptions.Grace is %v; it must not be negative", o.Grace)
	}
	claim.Key, claim.From = p.Key, p.Token
	if wait == noWait {
		claim.Mode = store.Try
	}
	claim.Grace = o.Grace
	r := request{Claim: claim, parent: o.parent(ctx), stopTimeout: o.StopTimeout, maxLifetime: o.MaxLifetime}
	c.enter() // because the place may have to be released after acquire
	defer c.leave()
	lease, err := c.acquire(ctx, r, wait)
	if errors.Is(err, ErrDone) || errors.Is(err, ErrMismatch) {
		claim.Token = p.Token
		c.undoer.release(claim)
	}
	return lease, err
}

// CancelPlace gives a reserved place back. It returns ErrLost when the place has ended
// before, ErrStore when the store did not answer, ErrBusy when the store was busy with the
// key for all of Options.Timeout, another error of the store, or the cause with which ctx
// ended. If it was not given back, the place may stay until its Grace is over.
func (c *Client) CancelPlace(ctx context.Context, p Place) error {
	if err := p.Key.Validate(); err != nil {
		return err
	}
	err, callErr := c.settle(ctx, store.Settlement{Key: p.Key, Token: p.Token, Outcome: store.Release}, func() bool { return false })
	switch {
	case (callErr != nil || errors.Is(err, ErrBusy)) && ctx.Err() != nil:
		return context.Cause(ctx)
	case callErr != nil:
		return &StoreError{Op: "settle", Err: callErr}
	}
	return err
}
