package engine_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestFencesRiseWithAClockSetBack: of grants that are claimed, that are pushed, and of a key whose
// row was deleted. A held answer's fence is as high.
func TestFencesRiseWithAClockSetBack(t *testing.T) {
	db := &tables{turn: store.PushedTTL}
	db.wipe()
	s := db.open()
	k, last := store.Key{Name: "k"}, uint64(0)
	claim := func(token store.Token, mode store.Mode) store.Answer {
		t.Helper()
		answers := make([]store.Answer, 1)
		testkit.Must(t, s.Claim(t.Context(), []store.Claim{{Key: k, Token: token, Mode: mode, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}}, answers))
		testkit.Must(t, answers[0].Err)
		return answers[0]
	}
	rises := func(what string, a store.Answer, state store.State) {
		t.Helper()
		if a.State != state || a.Fence < last || state == store.Granted && a.Fence == last {
			t.Errorf("%s is answered %+v, after the fence %d", what, a, last)
		}
		last = a.Fence
	}
	release := func(token store.Token) {
		t.Helper()
		errs := make([]error, 1)
		testkit.Must(t, s.Settle(t.Context(), []store.Settlement{{Key: k, Token: token, Outcome: store.Release}}, errs))
		testkit.Must(t, errs[0])
	}
	woken := make(chan store.Answer, 10)
	defer s.Notify(func(_ store.Token, a store.Answer) { woken <- a })()
	a, b, c := store.NewToken(), store.NewToken(), store.NewToken()
	rises("the first", claim(a, store.Try), store.Granted)
	release(a)
	db.slow = -time.Hour
	rises("a claim after that", claim(b, store.Try), store.Granted)
	rises("a waiter", claim(c, store.Queue), store.Held)
	release(b)
	rises("the waiter's push", <-woken, store.Granted)
	release(c)
	db.wipe()
	db.mark = int64(last)
	rises("a claim of a key whose row was deleted", claim(a, store.Try), store.Granted)
}
