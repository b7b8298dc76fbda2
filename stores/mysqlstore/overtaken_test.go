package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// overtaken is a settlement that looks at keys one of which has no row, and has to wait for another
// one's. Meanwhile claims take the first key.
type overtaken struct {
	t           *testing.T
	s           *Store
	late, held  store.Claim
	settlements []store.Settlement
}

// meet makes the settlement, in the midst of which it calls between, and returns its results.
func meet(t *testing.T, url string, outcome store.Outcome, between func(*overtaken)) (o *overtaken, errs []error, err error) {
	t.Helper()
	prefix := testkit.Own()
	o = &overtaken{t: t, s: open(t, url, &Options{Prefix: prefix})}
	// The one session that settles waits for the row, however long the machine pauses.
	o.s.back.SetMaxOpenConns(1)
	if _, err := o.s.back.ExecContext(t.Context(), "SET SESSION innodb_lock_wait_timeout=60"); err != nil {
		t.Fatal(err)
	}
	db := openDB(t, url)
	claim := func(name string) store.Claim {
		return store.Claim{Key: store.Key{Name: name}, Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1}
	}
	o.late, o.held = claim("a"), claim("b")
	o.claim(o.held, store.Granted)
	for _, c := range []store.Claim{o.late, o.held} {
		o.settlements = append(o.settlements, store.Settlement{Key: c.Key, Token: c.Token, Outcome: outcome})
		if outcome == store.Keep {
			o.settlements[len(o.settlements)-1].Retention = time.Hour
		}
	}
	tx, err := db.BeginTx(t.Context(), nil)
	testkit.Must(t, err)
	defer tx.Rollback()
	var fence int64
	testkit.Must(t, tx.QueryRowContext(t.Context(), "SELECT fence FROM "+prefix+"_key WHERE k=? FOR UPDATE", []byte(engine.KeyOf(o.held.Key))).Scan(&fence))
	done := make(chan error, 1)
	errs = make([]error, len(o.settlements))
	go func() { done <- o.s.Settle(context.WithoutCancel(t.Context()), o.settlements, errs) }()
	testkit.Eventually(t, "the settlement waits for the row", func() bool {
		var n int
		err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM information_schema.processlist WHERE id<>connection_id() AND info LIKE '%"+prefix+"\\_key%FOR UPDATE%'").Scan(&n)
		return err == nil && n > 0
	})
	between(o)
	testkit.Must(t, tx.Commit())
	err = <-done
	return o, errs, err
}

// claim makes a claim, which is answered with that state.
func (o *overtaken) claim(c store.Claim, want store.State) store.Answer {
	o.t.Helper()
	answers := make([]store.Answer, 1)
	if err := o.s.Claim(o.t.Context(), []store.Claim{c}, answers); err != nil || answers[0].State != want {
		o.t.Fatalf("%v, %+v, want the state %v", err, answers[0], want)
	}
	return answers[0]
}

// TestClaimMeetsItsSettlement: the claim that a settlement is for overtakes it. It is not said then
// that the lease was lost, if it was this settlement that ended it.
func TestClaimMeetsItsSettlement(t *testing.T) {
	t.Parallel()
	for kind, server := range servers {
		for _, outcome := range []store.Outcome{store.Undo, store.Keep} {
			t.Run(fmt.Sprint(kind, " ", outcome), func(t *testing.T) {
				t.Parallel()
				o, errs, err := meet(t, server().URL(), outcome, func(o *overtaken) { o.claim(o.late, store.Granted) })
				renewed := make([]error, 1)
				testkit.Must(t, o.s.Renew(t.Context(), []store.Renewal{{Key: o.late.Key, Token: o.late.Token, TTL: time.Minute}}, renewed))
				if err == nil && errors.Is(errs[0], store.ErrLost) && renewed[0] != nil {
					t.Error("the settlement ended the lease, and said that it was lost")
				}
			})
		}
	}
}

// TestWaitersMeetASettlement: a settlement that found no row of a key has not locked it, so it does
// not serve the waiters that came to the key since.
func TestWaitersMeetASettlement(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		o, errs, err := meet(t, server.URL(), store.Abandon, func(o *overtaken) {
			t.Cleanup(o.s.Notify(func(_ store.Token, a store.Answer) {
				if a.State == store.Granted {
					t.Error("a waiter was granted a key that is held")
				}
			}))
			holder, waiter := o.late, o.late
			holder.Token, waiter.Token = store.NewToken(), store.NewToken()
			waiter.Mode, waiter.PlaceTTL = store.Queue, time.Minute
			o.claim(holder, store.Granted)
			o.claim(waiter, store.Held)
		})
		if err != nil || !errors.Is(errs[0], store.ErrLost) || errs[1] != nil {
			t.Fatal(err, errs)
		}
		look := store.Claim{Key: o.late.Key, Mode: store.Look, Permits: 1, Weight: 1}
		if a := o.claim(look, store.Held); a.Ahead != 1 {
			t.Errorf("%+v, want a waiter", a)
		}
	})
}
