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
		return errors.New("dibs: not the text of a place")
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
// stands for that long; until it is redeemed, given up or has run out, nobody
// behind it is granted. Of the options, Permits and Fingerprint count.
//
// It returns ErrMismatch, ErrPermits, ErrUnknown, ErrFull, ErrClosed, ErrStore
// or the cause with which ctx ended.
func (c *Client) Reserve(ctx context.Context, key string, stands time.Duration, o *AcquireOptions) (Place, error) {
	claim, err := c.newClaim(key, o)
	if err != nil {
		return Place{}, err
	}
	if stands < time.Millisecond {
		return Place{}, fmt.Errorf("dibs: a place cannot be reserved for %v; at least %v", stands, time.Millisecond)
	}
	claim.Mode = Reserve
	claim.Place = stands
	c.enter()
	defer c.leave()
	a, _, err := c.ask(ctx, bid{Claim: claim})
	switch {
	case err != nil:
		return Place{}, err
	case a.State == Held && a.Queued:
		return Place{Key: claim.Key, Token: claim.Token}, nil
	}
	return Place{}, refusal(claim, a)
}

// Redeem takes the key at a reserved place, waiting for its turn as Acquire
// does. When it gives up waiting (NoWait, Wait, the end of ctx) the place
// stands as before, and Redeem can be called again. A place that has run out
// is none: NoWait finds out whether the key is free all the same, and who
// waits joins at the end.
//
// The place is the lease's while that stands, so that of two who redeem it at
// once one waits for the other. Release and Complete give it up; after Abandon,
// a crash or a loss it stands again, in front, for as long as it was reserved
// for, and can be redeemed anew.
func (c *Client) Redeem(ctx context.Context, p Place, o *AcquireOptions) (*Lease, error) {
	claim, err := c.newClaim(p.Key.Name, o)
	if err != nil {
		return nil, err
	}
	// A reserved place is never granted in its redeemer's absence, so that no
	// turn can be missed between two calls.
	claim.Key, claim.Mode, claim.Place, claim.Redeems = p.Key, Try, 0, p.Token
	b := bid{Claim: claim}
	if o != nil {
		b.margin, b.detach = o.Margin, o.Detach
	}
	wait := c.waitOf(o)
	lease, err := c.acquire(ctx, b, wait)
	if wait == noWait || !errors.Is(err, ErrHeld) {
		return lease, err
	}
	var held *HeldError
	if errors.As(err, &held) && held.Waited > 0 {
		return nil, err
	}
	b.Mode, b.Place, b.Redeems = Queue, placeNear, Token{}
	return c.acquire(ctx, b, wait)
}

// GiveUp gives a reserved place back.
func (c *Client) GiveUp(ctx context.Context, p Place) error {
	err, _, callErr := c.settles.do(ctx, nil, Settlement{Key: p.Key, Token: p.Token, Outcome: Release}, nil)
	switch {
	case callErr != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case callErr != nil:
		return &StoreError{Op: "settle", Err: callErr}
	}
	return err
}
