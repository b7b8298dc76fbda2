package pgstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/internal/sqltest"
)

// TestStandingLocksNoKey: who claims from a place behind others, and who stops waiting
// there, waits for nobody who has the key's row locked, and so is not in the way of a
// hand-over: also while the key lies idle for the first one, whose Hold begins.
func TestStandingLocksNoKey(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	q := newLine(ctx, t, 10*time.Minute)
	s, claim, settle, second := q.s, q.claim, q.settle, q.places[1]
	worker := dibs.NewToken()
	waits := func(want dibs.Answer, least, most time.Duration) {
		t.Helper()
		a := claim(dibs.Claim{Token: worker, Redeems: second, Place: time.Second})
		if n := q.redeemers(); n != 1 {
			t.Errorf("%d wait at places", n)
		}
		left := a.Left
		a.Left, a.Fence = 0, 0
		if want.State, want.Queued = dibs.Held, true; a.State != want.State || a.Ahead != want.Ahead || a.Idle != want.Idle || !a.Queued || left < least || left > most {
			t.Errorf("from the second place: %+v with %v left; want %+v with %v to %v", a, left, want, least, most)
		}
		if err := settle(dibs.Settlement{Token: worker, Outcome: dibs.Undo}); err != dibs.ErrLost {
			t.Errorf("who waited and held nothing: %v; want %v", err, dibs.ErrLost)
		}
		if n := q.redeemers(); n != 0 {
			t.Errorf("%d still wait", n)
		}
	}
	unlock := lockKeys(t, s)
	waits(dibs.Answer{Ahead: 1}, 50*time.Minute, time.Hour)
	unlock()
	if err := settle(dibs.Settlement{Token: q.holder}); err != nil {
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

// TestHoldBeginsWhenItIsBegun: a claim from behind that comes with one of another key, whose
// row somebody has locked for a while, begins the first one's Hold after that.
func TestHoldBeginsWhenItIsBegun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const hold = 10 * time.Minute
	q := newLine(ctx, t, hold)
	if err := q.settle(dibs.Settlement{Token: q.holder}); err != nil {
		t.Fatal(err)
	}
	other := dibs.Claim{Key: dibs.Key{Name: "other"}, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1}
	if err := q.s.Claim(ctx, []dibs.Claim{other}, make([]dibs.Answer, 1)); err != nil {
		t.Fatal(err)
	}
	unlock := lockKeys(t, q.s)
	other.Token, other.Mode, other.Place = dibs.NewToken(), dibs.Reserve, time.Minute
	behind := dibs.Claim{Key: q.key, Token: dibs.NewToken(), Redeems: q.places[1], TTL: time.Minute, Permits: 1, Place: time.Second}
	done := make(chan error)
	go func() {
		answers := make([]dibs.Answer, 2)
		err := q.s.Claim(ctx, []dibs.Claim{other, behind}, answers)
		done <- errors.Join(err, answers[0].Err, answers[1].Err)
	}()
	q.untilLocked()
	var before, ends time.Time
	if err := q.s.back.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&before); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := q.s.back.QueryRow(ctx, q.s.names.sql("SELECT ends FROM @waiter WHERE token = $1"), q.places[0][:]).Scan(&ends); err != nil {
		t.Fatal(err)
	}
	if d := ends.Sub(before); d < hold || d > hold+failpoint.Limit {
		t.Errorf("the first place ends %v after the claims had still waited, want its Hold of %v", d, hold)
	}
}

// TestUndoComesAfterItsClaim: while a claim may be under way in the server of which nothing
// was heard, its Undo waits for the key's row, as that claim may.
func TestUndoComesAfterItsClaim(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	q := newLine(ctx, t, 10*time.Minute)
	worker := dibs.NewToken()
	q.claim(dibs.Claim{Token: worker, Redeems: q.places[1], Place: time.Minute})
	unlock := lockKeys(t, q.s)
	claiming, cut := context.WithCancel(ctx)
	done := make(chan error)
	go func() {
		claim := dibs.Claim{Key: q.key, Token: dibs.NewToken(), Mode: dibs.Reserve, Place: time.Minute, TTL: time.Minute, Permits: 1}
		done <- q.s.Claim(claiming, []dibs.Claim{claim}, make([]dibs.Answer, 1))
	}()
	q.untilLocked()
	cut()
	if err := <-done; err == nil {
		t.Fatal("the claim was answered")
	}
	undo := dibs.Settlement{Token: worker, Outcome: dibs.Undo}
	if err := q.settle(undo); !errors.Is(err, ErrLocked) {
		t.Errorf("Undo while the key is locked: %v, want %v", err, ErrLocked)
	}
	unlock()
	if err := q.settle(undo); err != dibs.ErrLost {
		t.Errorf("Undo: %v, want %v", err, dibs.ErrLost)
	}
	if n := q.redeemers(); n != 0 {
		t.Errorf("%d still wait", n)
	}
}

// line is a key that is held, with two places behind, of a store that listens.
type line struct {
	ctx    context.Context
	t      *testing.T
	s      *Store
	key    dibs.Key
	holder dibs.Token
	places [2]dibs.Token
}

func newLine(ctx context.Context, t *testing.T, hold time.Duration) *line {
	t.Helper()
	q := &line{
		ctx: ctx, t: t, s: open(t, shared().URL(), ownNames()), key: dibs.Key{Name: "k"},
		holder: dibs.NewToken(), places: [2]dibs.Token{dibs.NewToken(), dibs.NewToken()},
	}
	q.claim(dibs.Claim{Token: q.holder})
	for _, p := range q.places {
		q.claim(dibs.Claim{Token: p, Mode: dibs.Reserve, Place: time.Hour, Hold: hold})
	}
	// Nobody waits at a place who could not be told there.
	t.Cleanup(q.s.NotifyGrants(func(dibs.Token, dibs.Answer) {}))
	untilListening(t, q.s)
	sql := q.s.names.sql("SELECT count(*) FROM @waiter")
	sqltest.Eventually(t, "only the places are in the queue", func() bool { return shared().Query(sql)[0][0] == "2" })
	return q
}

// claim claims the key.
func (q *line) claim(c dibs.Claim) dibs.Answer {
	q.t.Helper()
	c.Key, c.TTL, c.Permits = q.key, time.Hour, 1
	answers := make([]dibs.Answer, 1)
	if err := q.s.Claim(q.ctx, []dibs.Claim{c}, answers); err != nil || answers[0].Err != nil {
		q.t.Fatal(err, answers[0].Err)
	}
	return answers[0]
}

// settle ends what was claimed.
func (q *line) settle(x dibs.Settlement) error {
	q.t.Helper()
	x.Key = q.key
	errs := make([]error, 1)
	if err := q.s.Settle(q.ctx, []dibs.Settlement{x}, errs); err != nil {
		q.t.Fatal(err)
	}
	return errs[0]
}

// redeemers is how many wait at places.
func (q *line) redeemers() (n int) {
	q.t.Helper()
	if err := q.s.front.QueryRow(q.ctx, q.s.names.sql("SELECT count(*) FROM @waiter WHERE redeemer IS NOT NULL")).Scan(&n); err != nil {
		q.t.Fatal(err)
	}
	return n
}

// untilLocked waits until a claim waits for a row.
func (q *line) untilLocked() {
	q.t.Helper()
	sql := "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
	sqltest.Eventually(q.t, "a claim waits for a lock", func() (waits bool) {
		if err := q.s.back.QueryRow(q.ctx, sql, "%"+q.s.names.prefix+"_claim%").Scan(&waits); err != nil {
			q.t.Fatal(err)
		}
		return waits
	})
}
