package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// touch is a statement that changes a row.
func (b *bank) touch(row string) string {
	return fmt.Sprintf("UPDATE %s SET n=n+1 WHERE what='%s'", b.ledger, row)
}

// deadlock has the server roll a transaction back because of a deadlock, and returns the error.
func (b *bank) deadlock(ctx context.Context, tx *sql.Tx) error {
	other, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer other.Rollback()
	// The server undoes that which has changed less.
	for range 40 {
		if _, err := other.ExecContext(ctx, b.entry("other")); err != nil {
			return err
		}
	}
	if _, err := other.ExecContext(ctx, b.touch("left")); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, b.touch("right")); err != nil {
		return err
	}
	waits := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(ctx, b.touch("right"))
		waits <- err
	}()
	_, err = tx.ExecContext(ctx, b.touch("left"))
	if other := <-waits; other != nil {
		return errors.Join(err, fmt.Errorf("the other one: %v", other))
	}
	return err
}

// TestDeadlockIgnored: a run that continues after a deadlock, whose statements are then
// committed one by one, has no answer kept: even when it begins a transaction of its
// own by SQL.
func TestDeadlockIgnored(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr store.Transactor) {
		b.query(t, "ALTER TABLE "+b.ledger+" ADD COLUMN id INT AUTO_INCREMENT PRIMARY KEY, ADD KEY (what); "+b.entry("left")+"; "+b.entry("right"))
		for _, goOn := range []string{"DO 0", "START TRANSACTION"} {
			ran := 0
			_, err := OnceTx(t.Context(), b.client, tr, goOn, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
				ran++
				if _, err := tx.ExecContext(ctx, b.entry("before")); err != nil {
					return "", err
				}
				if err := b.deadlock(ctx, tx); code(err) != 1213 {
					t.Errorf("%v, want a deadlock", err)
				}
				if _, err := tx.ExecContext(ctx, goOn); err != nil {
					return "", err
				}
				_, err := tx.ExecContext(ctx, b.entry("after"))
				return "half of it", err
			})
			if !errors.Is(err, ErrTransactionEnded) || ran != 1 {
				t.Errorf("%s: after %d runs: %v, want ErrTransactionEnded", goOn, ran, err)
			}
			if n := b.entries(t, "before"); n != 0 {
				t.Errorf("%s: %d entries of what was rolled back", goOn, n)
			}
			if got, err := b.book(t.Context(), tr, goOn); err != nil || got != "booked "+goOn {
				t.Errorf("%s: then %q, %v", goOn, got, err)
			}
		}
	})
}

// TestLockWaits: a run that returns the error of a lock wait runs again. A run that does not
// continues, because the server rolled back only the statement. If the server rolls back the whole
// transaction, no answer is kept.
func TestLockWaits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server func() *servertest.MariaDBServer
		all    bool // is undone
	}{
		"MariaDB":      {mariadb, false},
		"MySQL":        {servers["MySQL"], false},
		"MariaDB, all": {odd, true},
	} {
		if test.server == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, test.server(), "?innodb_lock_wait_timeout=1")
			tr := b.s.Transactions(b.db, nil)
			b.query(t, "ALTER TABLE "+b.ledger+" ADD PRIMARY KEY (what); "+b.entry("row"))
			for _, swallows := range []bool{false, true} {
				key := fmt.Sprint("swallows: ", swallows)
				ran := 0
				_, err := OnceTx(t.Context(), b.client, tr, key, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
					if _, err := tx.ExecContext(ctx, b.entry(key)); err != nil {
						return "", err
					}
					if ran++; ran == 1 {
						other, err := b.db.BeginTx(ctx, nil)
						if err != nil {
							return "", err
						}
						defer other.Rollback()
						if _, err := other.ExecContext(ctx, b.touch("row")); err != nil {
							return "", err
						}
					}
					_, err := tx.ExecContext(ctx, b.touch("row"))
					if ran == 1 && code(err) != 1205 {
						t.Errorf("%v, want that the row is locked", err)
					}
					if swallows {
						err = nil
					}
					return "", err
				})
				n := b.entries(t, key)
				switch {
				case swallows && test.all:
					if !errors.Is(err, ErrTransactionEnded) || n != 0 {
						t.Errorf("%s: %v, %d entries; want ErrTransactionEnded", key, err, n)
					}
				case err != nil || n != 1 || swallows != (ran == 1):
					t.Errorf("%s: %v, %d entries after %d runs", key, err, n, ran)
				}
			}
		})
	}
}

// TestRenewedInTransaction: a lease may be renewed while the transaction is open. On
// MariaDB with innodb_snapshot_isolation, at the levels with a snapshot, that makes for
// a conflict, and a run anew.
func TestRenewedInTransaction(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		params string
		level  sql.IsolationLevel
		runs   int
	}{
		"MySQL":                   {"", sql.LevelRepeatableRead, 1},
		"MySQL, serializable":     {"", sql.LevelSerializable, 1},
		"MariaDB":                 {"", sql.LevelRepeatableRead, 1},
		"MariaDB, snapshot":       {"?innodb_snapshot_isolation=1", sql.LevelRepeatableRead, 2},
		"MariaDB, read committed": {"?innodb_snapshot_isolation=1", sql.LevelReadCommitted, 1},
	} {
		server := serverOf(name)
		if server == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, server(), test.params)
			b.query(t, b.entry("row"))
			ran := 0
			_, err := OnceTx(t.Context(), b.client, b.s.Transactions(b.db, &sql.TxOptions{Isolation: test.level}), "k", nil, func(ctx context.Context, tx *sql.Tx) (n int, err error) {
				ran++
				if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+b.ledger).Scan(&n); err != nil { // its snapshot
					return 0, err
				}
				if _, err := tx.ExecContext(ctx, b.entry("k")); err != nil {
					return 0, err
				}
				if ran == 1 {
					lease, _ := dibs.FromContext(ctx)
					return 0, lease.Save(ctx, []byte("half")) // which renews it
				}
				return 0, nil
			})
			// A renewal that comes by itself on a slow machine makes one more run.
			if n := b.entries(t, "k"); err != nil || ran < test.runs || test.runs == 1 && ran > 1 || n != 1 {
				t.Errorf("%v, %d entries after %d runs; want at least %d", err, n, ran, test.runs)
			}
		})
	}
}

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
