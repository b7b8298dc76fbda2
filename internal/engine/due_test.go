package engine_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
)

// TestProgressIsNotPushed: a waiter whose grant carries the progress of an abandoned lease is
// woken to ask, because a poll does not read progress.
func TestProgressIsNotPushed(t *testing.T) {
	for _, permits := range []int{1, 2} {
		db := &tables{turn: dibs.PushedTTL}
		db.wipe()
		s := db.open()
		k, next := dibs.Key{Name: "k"}, dibs.NewToken()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		claim := func(token dibs.Token) dibs.Answer {
			answers := make([]dibs.Answer, 1)
			must(s.Claim(t.Context(), []dibs.Claim{{Key: k, Token: token, TTL: time.Minute, Permits: permits, Weight: 1}}, answers))
			return answers[0]
		}
		holder, errs := dibs.NewToken(), make([]error, 1)
		claim(holder)
		must(s.Renew(t.Context(), []dibs.Renewal{{Key: k, Token: holder, TTL: time.Minute, Progress: []byte("half")}}, errs))
		must(errs[0])
		must(s.Settle(t.Context(), []dibs.Settlement{{Key: k, Token: holder, Outcome: dibs.Abandon}}, errs))
		must(errs[0])
		if a := claim(next); a.State != dibs.Granted || string(a.Progress) != "half" {
			t.Fatalf("%+v, want a grant with the progress", a)
		}
		name, tokens := engine.KeyOf(k), []dibs.Token{next}
		b := engine.NewBatch(engine.Tokens{name: tokens}, true, 0)
		var due []engine.WakeUp
		must(db.work(t.Context(), engine.Polling, b, func() { due = b.State(name).Due(tokens, map[dibs.Token]int{}) }))
		if len(due) != 1 || due[0].Token != next || due[0].Answer.State != 0 {
			t.Errorf("%d permits: due are %+v, want that the waiter is woken", permits, due)
		}
	}
}
