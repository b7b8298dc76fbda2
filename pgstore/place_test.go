package pgstore

import (
	"context"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// TestStandingLocksNoKey: who claims from a place behind others, and who stops waiting
// there, waits for nobody who has the key's row locked, and so is not in the way of a
// hand-over: also while the key lies idle for the first one, whose Hold begins.
func TestStandingLocksNoKey(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), ownNames())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	key := dibs.Key{Name: "k"}
	claim := func(c dibs.Claim) dibs.Answer {
		t.Helper()
		c.Key, c.TTL, c.Permits = key, time.Minute, 1
		answers := make([]dibs.Answer, 1)
		if err := s.Claim(ctx, []dibs.Claim{c}, answers); err != nil || answers[0].Err != nil {
			t.Fatal(err, answers[0].Err)
		}
		return answers[0]
	}
	settle := func(x dibs.Settlement) error {
		t.Helper()
		x.Key = key
		errs := make([]error, 1)
		if err := s.Settle(ctx, []dibs.Settlement{x}, errs); err != nil {
			t.Fatal(err)
		}
		return errs[0]
	}
	holder, worker := dibs.NewToken(), dibs.NewToken()
	claim(dibs.Claim{Token: holder})
	first, second := dibs.NewToken(), dibs.NewToken()
	for _, p := range []dibs.Token{first, second} {
		claim(dibs.Claim{Token: p, Mode: dibs.Reserve, Place: time.Hour, Hold: 10 * time.Minute})
	}
	c := newClient(t, s, nil)
	untilListening(t, s, c, key.Name) // nobody waits at a place who could not be told there
	redeemers := func() (n int) {
		t.Helper()
		if err := s.front.QueryRow(ctx, s.names.sql("SELECT count(*) FROM @waiter WHERE redeemer IS NOT NULL")).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	waits := func(want dibs.Answer, least, most time.Duration) {
		t.Helper()
		a := claim(dibs.Claim{Token: worker, Redeems: second, Place: time.Second})
		if n := redeemers(); n != 1 {
			t.Errorf("%d wait at places", n)
		}
		left := a.Left
		a.Left, a.Fence = 0, 0
		if want.State, want.Queued = dibs.Held, true; a.State != want.State || a.Ahead != want.Ahead || a.Idle != want.Idle || !a.Queued || left < least || left > most {
			t.Errorf("from the second place: %+v with %v left; want %+v with %v to %v", a, left, want, least, most)
		}
		if err := settle(dibs.Settlement{Token: worker, Redeems: second, Outcome: dibs.Undo}); err != dibs.ErrLost {
			t.Errorf("who waited and held nothing: %v; want %v", err, dibs.ErrLost)
		}
		if n := redeemers(); n != 0 {
			t.Errorf("%d still wait", n)
		}
	}
	unlock := lockKeys(t, s)
	waits(dibs.Answer{Ahead: 1}, 50*time.Second, time.Minute)
	unlock()
	if err := settle(dibs.Settlement{Token: holder}); err != nil {
		t.Fatal(err)
	}
	unlock = lockKeys(t, s)
	waits(dibs.Answer{Ahead: 1, Idle: true}, 9*time.Minute, 10*time.Minute)
	unlock()
	look := claim(dibs.Claim{Token: dibs.NewToken(), Redeems: second, Mode: dibs.Look})
	if look.Left > 10*time.Minute {
		t.Errorf("the first place has %v left; its Hold of 10m has begun", look.Left)
	}
}
