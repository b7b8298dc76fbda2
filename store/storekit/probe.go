package storekit

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs/store"
)

// probe is the key that Probe and Try ask for.
const probe = "dibs probe"

// Probe makes a claim that changes nothing, to find out whether the user of the store may claim.
func Probe(ctx context.Context, s store.Store) error {
	return claim(ctx, s, store.Claim{Key: store.Key{Name: probe}, Mode: store.Look, Permits: 1, Weight: 1})
}

// tried is the process's token for Try. With one token for all tries, a try whose outcome is
// unknown does not stop the next one.
var tried = store.NewToken()

// Try takes and gives back a lease on a key of the process's own, because a server that takes no
// writes may still answer Probe. It returns why claims fail now.
func Try(ctx context.Context, s store.Store) error {
	k := store.Key{Name: probe + " " + tried.ID()}
	if err := claim(ctx, s, store.Claim{Key: k, Token: tried, Permits: 1, Weight: 1, TTL: 10 * time.Second}); err != nil {
		return err
	}
	errs := make([]error, 1)
	err := s.Settle(ctx, []store.Settlement{{Key: k, Token: tried, Outcome: store.Undo}}, errs)
	if errors.Is(errs[0], store.ErrLost) { // another goroutine was faster
		errs[0] = nil
	}
	return errors.Join(err, errs[0])
}

func claim(ctx context.Context, s store.Store, c store.Claim) error {
	answers := make([]store.Answer, 1)
	if err := s.Claim(ctx, []store.Claim{c}, answers); err != nil {
		return err
	}
	return answers[0].Err
}
