package sqlitestore

import (
	"testing"

	"github.com/dibs-go/dibs/store"
)

func claimOne(t testing.TB, s *Store, c store.Claim) store.Answer {
	answers := [1]store.Answer{}
	if err := s.Claim(t.Context(), []store.Claim{c}, answers[:]); err != nil {
		t.Errorf("claim: %v", err)
	}
	return answers[0]
}

func mustGrant(t testing.TB, s *Store, c store.Claim) store.Answer {
	a := claimOne(t, s, c)
	if a.State != store.Granted {
		t.Errorf("the claim was answered %+v", a)
	}
	return a
}

func settleOne(t testing.TB, s *Store, x store.Settlement) error {
	errs := [1]error{}
	if err := s.Settle(t.Context(), []store.Settlement{x}, errs[:]); err != nil {
		t.Errorf("settle: %v", err)
	}
	return errs[0]
}

func mustSettle(t testing.TB, s *Store, x store.Settlement) {
	if err := settleOne(t, s, x); err != nil {
		t.Errorf("settle: %v", err)
	}
}
