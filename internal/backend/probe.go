package backend

import (
	"context"

	"github.com/dibs-go/dibs/store"
)

// Probe makes a claim that changes nothing, to find out whether the user of the store may claim.
func Probe(ctx context.Context, s store.Store) error {
	claims := []store.Claim{{Key: store.Key{Name: "dibs probe"}, Mode: store.Look, Permits: 1, Weight: 1}}
	answers := make([]store.Answer, 1)
	if err := s.Claim(ctx, claims, answers); err != nil {
		return err
	}
	return answers[0].Err
}
