package engine_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
)

// TestProgressIsNotPushed: a waiter whose grant carries the progress of an abandoned lease is
// woken to ask, because a poll does not read progress.
func TestProgressIsNotPushed(t *testing.T) {
	for _, permits := range []int{1, 2} {
		db := &tables{turn: store.PushedTTL}
		db.wipe()
		s := db.open()
		k, next := store.Key{Name: "k"}, store.NewToken()
		claim := func(token store.Token) store.Answer {
			answers := make([]store.Answer, 1)
			testkit.Must(t, s.Claim(t.Context(), []store.Claim{{Key: k, Token: token, TTL: time.Minute, Permits: permits, Weight: 1}}, answers))
			return answers[0]
		}
		holder, errs := store.NewToken(), make([]error, 1)
		claim(holder)
		testkit.Must(t, s.Renew(t.Context(), []store.Renewal{{Key: k, Token: holder, TTL: time.Minute, Progress: []byte("half")}}, errs))
		testkit.Must(t, errs[0])
		testkit.Must(t, s.Settle(t.Context(), []store.Settlement{{Key: k, Token: holder, Outcome: store.Abandon}}, errs))
		testkit.Must(t, errs[0])
		if a := claim(next); a.State != store.Granted || string(a.Progress) != "half" {
			t.Fatalf("%+v, want a grant with the progress", a)
		}
		name, tokens := engine.KeyOf(k), []store.Token{next}
		b := engine.NewBatch(engine.Tokens{name: tokens}, true, 0)
		var due []engine.WakeUp
		testkit.Must(t, db.work(t.Context(), remote.Polling, b, func() { due = b.State(name).Due(tokens, map[store.Token]int{}) }))
		if len(due) != 1 || due[0].Token != next || due[0].Answer.State != 0 {
			t.Errorf("%d permits: due are %+v, want that the waiter is woken", permits, due)
		}
	}
}
