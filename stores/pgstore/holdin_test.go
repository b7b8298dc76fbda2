package pgstore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

var levels = []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}

// tokenOf reads what SQL writes of a token.
func tokenOf(t testing.TB, text string) (token store.Token) {
	t.Helper()
	_, err := hex.Decode(token[:], []byte(text))
	testkit.Must(t, err)
	return token
}

// another is the same program on another connection.
func (a *application) another() *application {
	a.t.Helper()
	conn, err := pgx.Connect(a.t.Context(), a.conn.Config().ConnString())
	testkit.Must(a.t, err)
	a.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &application{a.bank, a.t, conn}
}

// begin begins a transaction at a level.
func (a *application) begin(level string) pgx.Tx {
	a.t.Helper()
	tx, err := a.conn.Begin(a.t.Context())
	if err == nil {
		_, err = tx.Exec(a.t.Context(), "SET TRANSACTION ISOLATION LEVEL "+level)
	}
	testkit.Must(a.t, err)
	return tx
}

func (a *application) in(tx pgx.Tx, sql string, args ...any) error {
	_, err := tx.Exec(a.t.Context(), a.s.names.sql(sql), args...)
	return err
}

// TestHoldIn: while a transaction holds a lease, the lease is renewed and others join the queue. When
// it has expired, nobody is granted the key before the transaction has ended.
func TestHoldIn(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		for _, permits := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d permits", level, permits), func(t *testing.T) {
				t.Parallel()
				a := newLeaser(t)
				key := store.Key{Name: "k"}
				mine := a.hold(store.Claim{Key: key, Permits: permits})
				full := store.Claim{Key: key, Token: store.NewToken(), Permits: permits, Weight: permits} // has to wait for the lease
				tx := a.begin(level)
				defer tx.Rollback(t.Context())
				testkit.Must(t, a.in(tx, "SELECT @hold_in('k', $1)", mine))
				testkit.Must(t, a.in(tx, a.entry("held")))
				renewals := []store.Renewal{{Key: key, Token: tokenOf(t, mine), TTL: time.Minute}, {Key: key, Token: tokenOf(t, mine), TTL: time.Minute, Progress: []byte("half")}}
				for _, r := range renewals {
					errs := make([]error, 1)
					if err := a.s.Renew(t.Context(), []store.Renewal{r}, errs); err != nil || errs[0] != nil {
						t.Errorf("a renewal meanwhile: %v, %v", err, errs[0])
					}
				}
				if permits == 1 {
					full.Mode = store.Queue
					if answer := sqltest.Ask(t, a.s, full); answer.State != store.Held || answer.Err != nil {
						t.Errorf("a waiter meanwhile: %+v", answer)
					}
					full.Mode = store.Try
				}
				if answer := sqltest.Ask(t, a.s, store.Claim{Key: store.Key{Name: "other"}, Token: store.NewToken()}); answer.State != store.Granted {
					t.Errorf("another key meanwhile: %+v", answer)
				}
				a.expire("k")
				if answer := sqltest.Ask(t, a.s, full); !errors.Is(answer.Err, ErrLocked) {
					t.Errorf("a claim after the lease expired: %+v, want ErrLocked", answer)
				}
				other := a.another()
				if got, err := other.one("SELECT state FROM @claim('k', @new_token(), '1 minute', permits => $1, weight => $1)", permits); code(err) != "55P03" {
					t.Errorf("a claim by SQL after the lease expired: %s, %v; want 55P03", got, err)
				}
				testkit.Must(t, tx.Commit(t.Context()))
				if answer := sqltest.Ask(t, a.s, full); answer.State != store.Granted || answer.Attempt != 2 || a.entries(t, "held") != 1 {
					t.Errorf("after COMMIT: %+v, %d entries", answer, a.entries(t, "held"))
				}
				// What was paused comes too late.
				late := a.begin(level)
				defer late.Rollback(t.Context())
				testkit.Must(t, a.in(late, a.entry("late")))
				if err := a.in(late, "SELECT @hold_in('k', $1)", mine); code(err) != stateLost {
					t.Errorf("a late write: %v, want DIBS1", err)
				}
				testkit.Check(t, late.Rollback(t.Context()))
				if n := a.entries(t, "late"); n != 0 {
					t.Errorf("%d late writes", n)
				}
			})
		}
	}
}

// TestHoldInEnds: what would end the lease waits for the transaction that holds it, which may end it itself.
func TestHoldInEnds(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			a := newLeaser(t)
			mine := a.hold(store.Claim{Key: store.Key{Name: "k"}})
			tx := a.begin(level)
			defer tx.Rollback(t.Context())
			testkit.Must(t, a.in(tx, "SELECT @hold_in('k', $1)", mine))
			if err := sqltest.Settle(t, a.s, store.Settlement{Key: store.Key{Name: "k"}, Token: tokenOf(t, mine)}); !errors.Is(err, ErrLocked) {
				t.Errorf("a release meanwhile: %v, want ErrLocked", err)
			}
			testkit.Must(t, a.in(tx, a.entry("k")))
			testkit.Must(t, a.in(tx, "SELECT @settle_in('k', $1, 'answer')", mine))
			testkit.Must(t, tx.Commit(t.Context()))
			if got := a.record(store.Key{Name: "k"}); got != "answer" {
				t.Errorf("the record %q", got)
			}
		})
	}
}

// TestHoldInSnapshot: a transaction whose snapshot does not show the lease as it is has a conflict,
// and is not told that the lease is lost, or lives. A renewal after the snapshot does not matter.
func TestHoldInSnapshot(t *testing.T) {
	t.Parallel()
	a := newLeaser(t)
	renew := func(key store.Key, mine string) {
		errs := make([]error, 1)
		testkit.Must(t, errors.Join(a.s.Renew(t.Context(), []store.Renewal{{Key: key, Token: tokenOf(t, mine), TTL: time.Minute}}, errs), errs[0]))
	}
	for _, level := range levels[1:] {
		for _, permits := range []int{1, 2} {
			for what, want := range map[string]string{"claimed": "40001", "renewed": "", "renewed after it expired": "40001", "released": "40001", "taken": "40001", "renewed and taken": "40001"} {
				key := store.Key{Name: fmt.Sprint(level, permits, what)}
				var mine string
				if what != "claimed" {
					mine = a.hold(store.Claim{Key: key, Permits: permits})
				}
				if what == "renewed after it expired" { // by the snapshot
					a.expire(key.Name)
				}
				tx := a.begin(level)
				testkit.Must(t, a.in(tx, a.entry(what)))
				switch what {
				case "claimed":
					mine = a.hold(store.Claim{Key: key, Permits: permits})
				case "renewed":
					renew(key, mine)
				case "renewed after it expired":
					for _, table := range []string{"@key", "@holder"} {
						shared().Query(a.s.names.sql("UPDATE " + table + " SET ends = @now() + 60000000 WHERE k = '\\x00'::bytea || '" + key.Name + "'"))
					}
				default:
					if what == "renewed and taken" {
						renew(key, mine)
					}
					testkit.Must(t, sqltest.Settle(t, a.s, store.Settlement{Key: key, Token: tokenOf(t, mine)}))
					if what != "released" {
						a.hold(store.Claim{Key: key, Permits: permits})
					}
				}
				if err := a.in(tx, "SELECT @hold_in($1, $2)", key.Name, mine); code(err) != want {
					t.Errorf("%s, %d permits, %s: %v, want %q", level, permits, what, err, want)
				}
				testkit.Must(t, tx.Rollback(t.Context()))
			}
		}
	}
}

// TestHoldInSavepoint: a savepoint that is rolled back takes a hold with it that came after it, and none that came before.
func TestHoldInSavepoint(t *testing.T) {
	t.Parallel()
	a := newLeaser(t)
	for _, test := range []struct {
		key    string
		before bool
	}{{"before", true}, {"after", false}} {
		mine := a.hold(store.Claim{Key: store.Key{Name: test.key}})
		tx := a.begin("READ COMMITTED")
		hold := func() { testkit.Must(t, a.in(tx, "SELECT @hold_in($1, $2)", test.key, mine)) }
		if test.before {
			hold()
		}
		testkit.Must(t, a.in(tx, "SAVEPOINT s"))
		hold()
		if err := a.in(tx, "SELECT 1/0"); err == nil {
			t.Fatal("a division by zero went well")
		}
		testkit.Must(t, a.in(tx, "ROLLBACK TO s"))
		a.expire(test.key)
		answer := sqltest.Ask(t, a.s, store.Claim{Key: store.Key{Name: test.key}, Token: store.NewToken()})
		if locked := errors.Is(answer.Err, ErrLocked); locked != test.before {
			t.Errorf("held %s the savepoint: %+v", test.key, answer)
		}
		testkit.Must(t, tx.Rollback(t.Context()))
	}
}

// TestRenewedBesideALock: a lease that a transaction holds is renewed together with one whose row
// another transaction keeps locked, which fails alone.
func TestRenewedBesideALock(t *testing.T) {
	t.Parallel()
	a := newLeaser(t)
	held, locked := a.hold(store.Claim{Key: store.Key{Name: "held"}}), a.hold(store.Claim{Key: store.Key{Name: "locked"}})
	tx := a.begin("READ COMMITTED")
	defer tx.Rollback(t.Context())
	testkit.Must(t, a.in(tx, "SELECT @hold_in('held', $1)", held))
	lock, err := a.pool.Begin(t.Context())
	testkit.Must(t, err)
	defer lock.Rollback(t.Context())
	_, err = lock.Exec(t.Context(), a.s.names.sql(`SELECT FROM @key WHERE k = '\x00'::bytea || 'locked' FOR UPDATE`))
	testkit.Must(t, err)
	errs := make([]error, 2)
	testkit.Must(t, a.s.Renew(t.Context(), []store.Renewal{
		{Key: store.Key{Name: "held"}, Token: tokenOf(t, held), TTL: time.Minute}, {Key: store.Key{Name: "locked"}, Token: tokenOf(t, locked), TTL: time.Minute},
	}, errs))
	if errs[0] != nil || !errors.Is(errs[1], ErrLocked) {
		t.Errorf("%v, %v; want nil, ErrLocked", errs[0], errs[1])
	}
}

// TestLeaseHoldIn: a lease that a transaction holds is renewed, and nobody is granted its key when
// it ends all the same. A transaction of a lease that is lost fails, and the lease's context ends.
func TestLeaseHoldIn(t *testing.T) {
	t.Parallel()
	for way := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, ways[way](), nil)
			way, _, _ := strings.Cut(way, ",")
			lease, err := b.client.TryAcquire(t.Context(), "k", nil)
			testkit.Must(t, err)
			k := b.client.Key("k")
			tx := b.begin(t, way)
			defer tx.rollback()
			testkit.Must(t, lease.HoldIn(t.Context(), tx))
			testkit.Must(t, tx.exec(b.entry("held")))
			testkit.Check(t, lease.Save(t.Context(), []byte("half"))) // a renewal
			if n, err := b.s.ForceRelease(t.Context(), k, ""); !errors.Is(err, ErrLocked) {
				t.Errorf("an operator ended %d leases meanwhile, %v; want ErrLocked", n, err)
			}
			testkit.Must(t, tx.commit())
			_, err = b.s.ForceRelease(t.Context(), k, "")
			testkit.Must(t, err)
			if got := sqltest.Ask(t, b.s, store.Claim{Key: k, Token: store.NewToken()}); got.State != store.Granted || b.entries(t, "held") != 1 {
				t.Errorf("after COMMIT: %+v, %d entries", got, b.entries(t, "held"))
			}
			late := b.begin(t, way)
			defer late.rollback()
			testkit.Must(t, late.exec(b.entry("late")))
			if err := lease.HoldIn(t.Context(), late); !errors.Is(err, dibs.ErrLost) || !errors.Is(lease.Err(), dibs.ErrLost) {
				t.Errorf("a lease that was taken away: %v, then %v", err, lease.Err())
			}
			if err := late.exec(b.entry("late")); err == nil {
				t.Error("the transaction continues")
			}
			if err := lease.HoldIn(t.Context(), late); !errors.Is(err, dibs.ErrLost) {
				t.Errorf("once more: %v", err)
			}
			testkit.Check(t, late.rollback())
			if n := b.entries(t, "late"); n != 0 {
				t.Errorf("%d late writes", n)
			}
		})
	}
}

// TestHoldInARun: a lease is held in the transaction of a run under another key.
func TestHoldInARun(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	lease, err := b.client.TryAcquire(t.Context(), "leader", nil)
	testkit.Must(t, err)
	got, err := OnceTx(t.Context(), b.client, b.s.Transactions(b.pool, nil), "k", nil, func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, b.entry("k"))
		return "done", errors.Join(lease.HoldIn(ctx, b.s.Holder(tx)), err)
	})
	if err != nil || got != "done" || b.entries(t, "k") != 1 {
		t.Errorf("%q, %v, %d entries", got, err, b.entries(t, "k"))
	}
	testkit.Check(t, lease.Release())
}

// TestHolderRefused: what cannot work is said at once.
func TestHolderRefused(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	shared().Query("CREATE DATABASE " + b.s.names.schema)
	elsewhere := strings.Replace(shared().URL(), "/postgres?", "/"+b.s.names.schema+"?", 1)
	open(t, elsewhere, namesOf(b.s)) // which has the same tables
	pool, err := pgxpool.New(t.Context(), elsewhere)
	testkit.Must(t, err)
	defer pool.Close()
	lease, err := b.client.TryAcquire(t.Context(), "k", &dibs.AcquireOptions{TTL: time.Minute})
	testkit.Must(t, err)
	other, err := pool.Begin(t.Context())
	testkit.Must(t, err)
	defer other.Rollback(context.Background())
	readOnly, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
	testkit.Must(t, err)
	over, err := b.pool.Begin(t.Context())
	testkit.Must(t, err)
	testkit.Must(t, over.Rollback(t.Context()))
	defer readOnly.Rollback(context.Background())
	for _, test := range []struct {
		h    store.Holder
		is   error
		says string
	}{
		{b.s.Holder(other), ErrOtherDatabase, "pool"},
		{b.s.Holder(readOnly), ErrReadOnly, "a lease is locked"},
		{b.s.Holder(readOnly), ErrAborted, "savepoint"}, // by that
		{b.s.Holder(over), pgx.ErrTxClosed, "over"},
		{b.s.Holder(nil), nil, "no transaction"},
		{b.s.SQLHolder(nil), nil, "no transaction"},
	} {
		err := lease.HoldIn(t.Context(), test.h)
		if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v; want %v, and %q", err, test.is, test.says)
		}
	}
	if err := lease.Err(); err != nil {
		t.Errorf("the lease: %v", err)
	}
	_, err = other.Exec(t.Context(), "SELECT 1")
	testkit.Check(t, err)
	testkit.Check(t, lease.Release())
}
