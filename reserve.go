package dibs

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Place is a place in a key's queue, reserved now and redeemed later, perhaps
// in another process. Whoever knows it can redeem it.
type Place struct {
	Key   Key
	Token Token
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
	// The decoder skips line ends. A place has one text.
	if again, err := q.MarshalText(); err != nil || string(again) != string(text) {
		return errors.New("dibs: not the text of a place: it is not written as a place is")
	}
	*p = q
	return nil
}

// Reserve takes a place in the key's queue without waiting there. The place
// stands for that long. Until it is redeemed, given up or has run out, no caller
// behind it is granted, but no longer than Hold while the key could be had.
// Of the options, Hold, Fingerprint and Label count.
//
// It returns the place and how it stands, or ErrMismatch, ErrUnknown, ErrFull, ErrBusy,
// ErrClosed, ErrStore or the cause with which ctx ended.
func (c *Client) Reserve(ctx context.Context, key string, stands time.Duration, o *AcquireOptions) (Place, PlaceStatus, error) {
	p := Place{Key: Key{Namespace: c.options.Namespace, Name: key}, Token: NewToken()}
	a, err := c.reserve(ctx, p, stands, o, false)
	if err != nil {
		return Place{}, PlaceStatus{}, err
	}
	return p, placed(a), nil
}

// Prolong makes a reserved place stand for that long from now on, with the Hold of
// these options, also one that a lease has taken: that is what it has when it
// stands again. A place that stands no more is taken anew, at the end of the queue.
//
// It returns how the place stands. The errors are those of Reserve.
func (c *Client) Prolong(ctx context.Context, p Place, stands time.Duration, o *AcquireOptions) (PlaceStatus, error) {
	a, err := c.reserve(ctx, p, stands, o, true)
	if err != nil {
		return PlaceStatus{}, err
	}
	return placed(a), nil
}

// placed is what the answer to a reservation says.
func placed(a Answer) PlaceStatus { return PlaceStatus{Exists: true, Waits: true, Ahead: a.Ahead} }

// PlaceStatus is how a reserved place stands in its key's queue.
type PlaceStatus struct {
	// Exists is false when the place is over: it was given up, its lease was released,
	// or its time has run out.
	Exists bool
	// Waits is false when Redeem would take the key at once.
	Waits bool
	// Ahead is how many places at most come before it; 0 when it is next.
	Ahead int
}

// PlaceStatus tells how a reserved place stands. It takes nothing and leaves the place
// as it is. Of the options, Permits and Weight count. The errors are ErrUnknown, ErrBusy,
// ErrClosed, ErrStore or the cause with which ctx ended.
func (c *Client) PlaceStatus(ctx context.Context, p Place, o *AcquireOptions) (PlaceStatus, error) {
	claim, err := c.newClaim(p.Key.Name, o)
	if err != nil {
		return PlaceStatus{}, err
	}
	claim.Key, claim.Mode, claim.From = p.Key, Look, p.Token
	claim.Fingerprint, claim.MaxAge = Fingerprint{}, 0
	a, _, err := c.ask(ctx, bid{Claim: claim}, noWait)
	switch {
	case err != nil:
		return PlaceStatus{}, err
	case a.State == Held || a.State == Free:
		return PlaceStatus{Exists: a.Queued, Waits: a.State == Held, Ahead: a.Ahead}, nil
	}
	return PlaceStatus{}, refusal(claim, a)
}

// Reserver takes places in a database transaction. The store that has the
// transaction's tables makes it.
type Reserver interface {
	// Reserve takes the places that these claims, of mode Reserve, ask for, in
	// their order. They are there if and when the transaction commits, and behind
	// those that were taken before.
	Reserve(ctx context.Context, claims []Claim) error
}

// ReserveIn is Reserve in a transaction: the place is there if and when that
// commits, and is not if it is rolled back.
func (c *Client) ReserveIn(ctx context.Context, r Reserver, key string, stands time.Duration, o *AcquireOptions) (Place, error) {
	p := Place{Key: Key{Namespace: c.options.Namespace, Name: key}, Token: NewToken()}
	claim, err := c.reservation(p, stands, o)
	if err != nil {
		return Place{}, err
	}
	return p, r.Reserve(ctx, []Claim{claim})
}

// reserve asks for the place; leave says that it was there before.
func (c *Client) reserve(ctx context.Context, p Place, stands time.Duration, o *AcquireOptions, leave bool) (Answer, error) {
	claim, err := c.reservation(p, stands, o)
	if err != nil {
		return Answer{}, err
	}
	c.enter()
	defer c.leave()
	a, _, err := c.ask(ctx, bid{Claim: claim, leave: leave}, noWait)
	switch {
	case err != nil:
		return a, err
	case a.State == Held && a.Queued:
		return a, nil
	}
	return a, refusal(claim, a)
}

// reservation is the claim that reserves the place.
func (c *Client) reservation(p Place, stands time.Duration, o *AcquireOptions) (Claim, error) {
	claim, err := c.newClaim(p.Key.Name, o)
	if err != nil {
		return claim, err
	}
	if stands < MinDuration {
		return claim, fmt.Errorf("dibs: a place cannot be reserved for %v; at least %v", stands, MinDuration)
	}
	claim.Key, claim.Token, claim.Mode, claim.Stay = p.Key, p.Token, Reserve, stands
	claim.MaxAge, claim.AtMostOnce = 0, false // it is for who redeems the place to say
	if o != nil {
		claim.Hold = o.Hold
	}
	return claim, nil
}

// Redeem takes the key at a reserved place, waiting for its turn as Acquire does. When
// it gives up waiting (NoWait, Wait, the end of ctx) the place stands as before, and
// Redeem can be called again. A place that is over is none: NoWait finds out whether the
// key is free all the same, and a caller that waits joins at the end.
//
// Of two callers that redeem one place at once, one waits for the other. Release and
// Complete end the place together with the lease, and so does a record that answers, or
// ErrMismatch. After Abandon, Undo, a crash or a loss the place stands in front again,
// and can be redeemed anew.
func (c *Client) Redeem(ctx context.Context, p Place, o *AcquireOptions) (*Lease, error) {
	claim, err := c.newClaim(p.Key.Name, o)
	if err != nil {
		return nil, err
	}
	wait := c.waitOf(o)
	claim.Key, claim.From = p.Key, p.Token
	if wait == noWait {
		claim.Mode = Try
	}
	b := bid{Claim: claim}
	if o != nil {
		b.margin, b.detach, b.Hold = o.Margin, o.Detach, o.Hold
	}
	lease, err := c.acquire(ctx, b, wait)
	if errors.Is(err, ErrDone) || errors.Is(err, ErrMismatch) {
		claim.Token = p.Token
		c.undoer.release(claim)
	}
	return lease, err
}

// CancelPlace gives a reserved place back. It returns ErrStore when the store did not answer,
// ErrBusy when it was too busy with the key for all of Options.Timeout, what else the
// store said, or the cause with which ctx ended: then the place may stand until its Hold
// is over.
func (c *Client) CancelPlace(ctx context.Context, p Place) error {
	err, callErr := c.settle(ctx, Settlement{Key: p.Key, Token: p.Token, Outcome: Release}, func() bool { return false })
	switch {
	case (callErr != nil || errors.Is(err, ErrBusy)) && ctx.Err() != nil:
		return context.Cause(ctx)
	case callErr != nil:
		return &StoreError{Op: "settle", Err: callErr}
	}
	return err
}
