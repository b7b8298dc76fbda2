package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// ownTransaction is one of the application, of either kind: it makes entries, reserves places and holds leases.
type ownTransaction struct {
	store.Reserver
	store.Holder
	exec             func(sql string) error
	commit, rollback func() error
}

// begin begins a transaction in that way.
func (b *bank) begin(t testing.TB, way string) *ownTransaction {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var own *ownTransaction
	if way == "sql" {
		tx, err := b.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		testkit.Must(t, err)
		exec := func(text string) error { _, err := tx.ExecContext(ctx, text); return err }
		own = &ownTransaction{b.s.SQLReserver(tx), b.s.SQLHolder(tx), exec, tx.Commit, tx.Rollback}
	} else {
		tx, err := b.pool.Begin(ctx)
		testkit.Must(t, err)
		exec := func(text string) error { _, err := tx.Exec(ctx, text); return err }
		own = &ownTransaction{b.s.Reserver(tx), b.s.Holder(tx), exec, func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) }}
	}
	t.Cleanup(func() { _ = own.rollback() })
	return own
}

// enqueue begins a transaction with an entry, in that way.
func (b *bank) enqueue(t testing.TB, way, what string) *ownTransaction {
	t.Helper()
	own := b.begin(t, way)
	testkit.Must(t, own.exec(b.entry(what)))
	return own
}

// reserve reserves a place in the transaction.
func (b *bank) reserve(t testing.TB, e *ownTransaction, key string, o *dibs.PlaceOptions) dibs.Place {
	t.Helper()
	p, err := b.client.ReserveIn(t.Context(), e, key, time.Hour, o)
	testkit.Must(t, err)
	return p
}

// places counts those that stand in the queue of a key.
func (b *bank) places(t testing.TB, key string) int {
	t.Helper()
	for e, err := range b.s.List(t.Context(), store.Query{Name: key}) {
		testkit.Must(t, err)
		return e.Waiters + e.Reserved
	}
	return 0
}

// ahead returns how many places come before that one; -1 if it does not stand.
func (b *bank) ahead(t testing.TB, p dibs.Place) int {
	t.Helper()
	answers := make([]store.Answer, 1)
	c := store.Claim{Key: p.Key, Token: p.Token, Mode: store.Look, Permits: 1, Weight: 1}
	if err := b.s.Claim(t.Context(), []store.Claim{c}, answers); err != nil || answers[0].Err != nil {
		t.Fatal(err, answers[0].Err)
	}
	switch a := answers[0]; {
	case a.State == store.Held && a.Queued:
		return a.Ahead
	case a.State == store.Free && b.places(t, p.Key.Name) > 0:
		return 0
	}
	return -1
}

// ways are how the application's transactions go, each of which is one of pgx or of
// database/sql.
var ways = map[string]func() string{"pgx": sharedURL, "sql": sharedURL}

// inEachWay runs a test with each kind of transaction.
func inEachWay(t *testing.T, test func(t *testing.T, b *bank, way string)) {
	t.Parallel()
	for name, url := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBank(t, url(), nil), name[:3])
		})
	}
}

// TestReserveIn: a place is there from the commit on, at the number that it was reserved
// with, and not without it.
func TestReserveIn(t *testing.T) {
	inEachWay(t, func(t *testing.T, b *bank, way string) {
		first, second, third := b.enqueue(t, way, "k"), b.enqueue(t, way, "k"), b.enqueue(t, way, "k")
		a, bb, c := b.reserve(t, first, "k", nil), b.reserve(t, second, "k", nil), b.reserve(t, third, "k", nil)
		d := b.reserve(t, third, "k", nil)
		outside, _, err := b.client.Reserve(t.Context(), "k", time.Hour, nil)
		testkit.Must(t, err)
		if n := b.places(t, "k"); n != 1 {
			t.Errorf("%d places before anything was committed, want 1", n)
		}
		for _, e := range []*ownTransaction{third, first} {
			testkit.Must(t, e.commit())
		}
		testkit.Must(t, second.rollback())
		if n := b.places(t, "k"); n != 4 || b.entries(t, "k") != 2 {
			t.Errorf("%d places and %d entries, want 4 and 2", n, b.entries(t, "k"))
		}
		if err := b.client.CancelPlace(t.Context(), bb); !errors.Is(err, store.ErrLost) {
			t.Errorf("%v; the place of a transaction that was rolled back is there", err)
		}
		for i, p := range []dibs.Place{a, c, d, outside} {
			if n := b.ahead(t, p); n != 0 {
				t.Errorf("%d come before place %d, want none", n, i)
			}
			lease, err := b.client.TryRedeem(t.Context(), p, nil)
			if err != nil {
				t.Fatalf("place %d: %v", i, err)
			}
			testkit.Check(t, lease.Release())
		}
		if n := b.places(t, "k"); n != 0 {
			t.Errorf("%d places are left", n)
		}
	})
}

// TestReserveInHasGrace: a place that a transaction reserves has the Grace of the options.
func TestReserveInHasGrace(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	e := b.enqueue(t, "pgx", "k")
	grace := 300 * time.Millisecond
	p := b.reserve(t, e, "k", &dibs.PlaceOptions{Grace: grace})
	start := time.Now()
	testkit.Must(t, e.commit())
	lease, err := b.client.Acquire(t.Context(), "k", nil)
	testkit.Must(t, err)
	if took := time.Since(start); took < grace {
		t.Errorf("it blocked for %v, want %v", took, grace)
	}
	if err := errors.Join(lease.Release(), b.client.CancelPlace(t.Context(), p)); !errors.Is(err, store.ErrLost) {
		t.Errorf("%v, want that the place is lost", err)
	}
}

// TestReserveInHoldsNobodyUp: while a transaction that has reserved a place is open,
// the key's lease is renewed, handed over and taken as if it were not.
func TestReserveInHoldsNobodyUp(t *testing.T) {
	inEachWay(t, func(t *testing.T, b *bank, way string) {
		holder := sqltest.Hold(t, b.s, "k")
		e := b.enqueue(t, way, "k")
		p := b.reserve(t, e, "k", nil)
		// Each would fail, with ErrLocked, if the transaction had locked the key.
		k, errs := store.Key{Name: "k"}, make([]error, 1)
		if err := b.s.Renew(t.Context(), []store.Renewal{{Key: k, Token: holder, TTL: time.Minute}}, errs); err != nil || errs[0] != nil {
			t.Error(err, errs[0])
		}
		next := store.NewToken()
		claim := store.Claim{Key: k, Token: next, Mode: store.Queue}
		if a := sqltest.Ask(t, b.s, claim); a.State != store.Held || a.Err != nil {
			t.Errorf("%+v, want that it waits", a)
		}
		testkit.Check(t, sqltest.Settle(t, b.s, store.Settlement{Key: k, Token: holder}))
		if a := sqltest.Ask(t, b.s, claim); a.State != store.Granted {
			t.Errorf("%+v, want that it is handed over", a)
		}
		testkit.Check(t, sqltest.Settle(t, b.s, store.Settlement{Key: k, Token: next}))
		sqltest.Cycle(t, b.s, k)
		testkit.Must(t, e.commit())
		if b.ahead(t, p) != 0 {
			t.Error("the place does not stand")
		}
	})
}

// TestReserveInAtOnce: many transactions reserve places of the same keys, in any order, while other
// clients take and renew leases. There is no deadlock, and no place is lost.
func TestReserveInAtOnce(t *testing.T) {
	inEachWay(t, func(t *testing.T, b *bank, way string) {
		const enqueuers, each, keys = 16, 8, 3
		var stop atomic.Bool
		var work, others sync.WaitGroup
		for g := range 2 {
			others.Go(func() {
				for !stop.Load() {
					k := store.Key{Name: fmt.Sprint(rand.IntN(keys))}
					c := store.Claim{Key: k, Token: store.NewToken(), Mode: store.Mode(g), TTL: time.Second, PlaceTTL: time.Second, Permits: 1, Weight: 1}
					errs := make([]error, 1)
					if err := errors.Join(
						b.s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)),
						b.s.Renew(t.Context(), []store.Renewal{{Key: k, Token: c.Token, TTL: time.Second}}, errs),
						b.s.Settle(t.Context(), []store.Settlement{{Key: k, Token: c.Token}}, errs),
					); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range enqueuers {
			work.Go(func() {
				for range each {
					e := b.enqueue(t, way, "job")
					for _, k := range rand.Perm(keys) {
						if _, err := b.client.ReserveIn(t.Context(), e, fmt.Sprint(k), time.Hour, nil); err != nil {
							t.Error(err)
						}
					}
					testkit.Check(t, e.commit())
				}
			})
		}
		work.Wait()
		stop.Store(true)
		others.Wait()
		for k := range keys {
			if n := b.places(t, fmt.Sprint(k)); n != enqueuers*each {
				t.Errorf("%d places of key %d, want %d", n, k, enqueuers*each)
			}
		}
	})
}

// TestReserveInARun: a run whose transaction settles its key may reserve places of
// others' keys, and of its own, and they do so crosswise without a deadlock.
func TestReserveInARun(t *testing.T) {
	t.Parallel()
	const n, rounds = 12, 4
	b := newBank(t, shared().URL()+fmt.Sprintf("&pool_max_conns=%d", n), nil)
	tr := b.s.Transactions(b.pool, nil)
	var ran atomic.Int64
	for round := range rounds {
		key := func(i int) string { return fmt.Sprint("run ", i, " ", round) }
		var all, begun sync.WaitGroup
		begun.Add(n)
		for i := range n {
			first := sync.OnceFunc(begun.Done)
			all.Go(func() {
				_, err := OnceTx(t.Context(), b.client, tr, key(i), nil, func(ctx context.Context, tx pgx.Tx) (int, error) {
					ran.Add(1)
					first()
					begun.Wait()
					for _, other := range rand.Perm(n) {
						if _, err := b.client.ReserveIn(ctx, b.s.Reserver(tx), key(other), time.Hour, nil); err != nil {
							return 0, err
						}
					}
					return 0, nil
				})
				testkit.Check(t, err)
			})
		}
		all.Wait()
		for i := range n {
			if got := b.places(t, key(i)); got != n {
				t.Errorf("%d places of key %d, want %d", got, i, n)
			}
		}
	}
	if ran.Load() != rounds*n {
		t.Errorf("%d runs, want %d: some met in a deadlock", ran.Load(), rounds*n)
	}
	// A transaction that was rolled back has reserved nothing.
	boom := errors.New("boom")
	_, err := OnceTx(t.Context(), b.client, tr, "fails", nil, func(ctx context.Context, tx pgx.Tx) (int, error) {
		_, err := b.client.ReserveIn(ctx, b.s.Reserver(tx), "k", time.Hour, nil)
		return 0, errors.Join(err, boom)
	})
	if !errors.Is(err, boom) || b.places(t, "k") != 0 {
		t.Errorf("%v, %d places", err, b.places(t, "k"))
	}
}

// TestReserveInSavepoint: what is rolled back in part has not reserved that part.
func TestReserveInSavepoint(t *testing.T) {
	inEachWay(t, func(t *testing.T, b *bank, way string) {
		e := b.enqueue(t, way, "k")
		kept := b.reserve(t, e, "k", nil)
		testkit.Must(t, e.exec("SAVEPOINT one"))
		gone := b.reserve(t, e, "k", nil)
		testkit.Must(t, e.exec("ROLLBACK TO one"))
		last := b.reserve(t, e, "k", nil)
		later := b.reserve(t, e, "k", nil)
		testkit.Must(t, e.commit())
		for i, p := range []dibs.Place{kept, last, later} {
			if n := b.ahead(t, p); n != i {
				t.Errorf("%d places before number %d", n, i)
			}
		}
		if n := b.places(t, "k"); n != 3 || b.client.CancelPlace(t.Context(), gone) == nil {
			t.Errorf("%d places, want 3", n)
		}
	})
}

// TestReserveInRefused: what cannot work is said at once, and the transaction can go
// on without.
func TestReserveInRefused(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	good := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), Mode: store.Reserve, PlaceTTL: time.Hour}
	invalid, queue := good, good
	invalid.PlaceTTL, queue.Mode, queue.TTL = 0, store.Queue, time.Second
	shared().Query("CREATE DATABASE " + b.s.names.schema)
	elsewhere := strings.Replace(shared().URL(), "/postgres?", "/"+b.s.names.schema+"?", 1)
	open(t, elsewhere, namesOf(b.s)) // which has the same tables
	other, err := pgxpool.New(t.Context(), elsewhere)
	testkit.Must(t, err)
	defer other.Close()
	for name, test := range map[string]struct {
		pool    *pgxpool.Pool
		options pgx.TxOptions
		claim   store.Claim
		is      error
		says    string
	}{
		"other database": {other, pgx.TxOptions{}, good, ErrOtherDatabase, "pool"},
		"invalid":        {b.pool, pgx.TxOptions{}, invalid, nil, "Claim.PlaceTTL"},
		"another mode":   {b.pool, pgx.TxOptions{}, queue, nil, "Claim.Mode"},
	} {
		err := pgx.BeginTxFunc(t.Context(), test.pool, test.options, func(tx pgx.Tx) error {
			err := b.s.Reserver(tx).Reserve(t.Context(), []store.Claim{good, test.claim})
			if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v; want %v, and %q", name, err, test.is, test.says)
			}
			_, err = tx.Exec(t.Context(), "SELECT 1")
			return err
		})
		if err != nil {
			t.Errorf("%s: then %v", name, err)
		}
	}
	if n := b.places(t, "k"); n != 0 {
		t.Errorf("%d places", n)
	}
	tx, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
	testkit.Must(t, err)
	for _, test := range []struct {
		r    store.Reserver
		is   error
		says string
	}{
		{b.s.Reserver(tx), ErrReadOnly, "read-write"},
		{b.s.Reserver(tx), ErrAborted, "savepoint"}, // by that
	} {
		if err := test.r.Reserve(t.Context(), []store.Claim{good}); !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v; want %v, and %q", err, test.is, test.says)
		}
	}
	_ = tx.Rollback(t.Context())
	for _, test := range []struct {
		r    store.Reserver
		is   error
		says string
	}{
		{b.s.Reserver(tx), pgx.ErrTxClosed, "over"},
		{b.s.Reserver(nil), nil, "no transaction"},
		{b.s.SQLReserver(nil), nil, "no transaction"},
	} {
		err := test.r.Reserve(t.Context(), []store.Claim{good})
		if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v; want %v, and %q", err, test.is, test.says)
		}
	}
}

// TestReserveInTablesMadeAnew: a store whose tables were lost and made again reserves
// in them.
func TestReserveInTablesMadeAnew(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	for range 2 {
		tx, err := b.pool.Begin(t.Context())
		testkit.Must(t, err)
		if _, err := b.client.ReserveIn(t.Context(), b.s.Reserver(tx), "k", time.Hour, nil); err != nil {
			t.Fatal(err)
		}
		testkit.Must(t, tx.Commit(t.Context()))
		if n := b.places(t, "k"); n != 1 {
			t.Errorf("%d places", n)
		}
		shared().Query("DROP SCHEMA " + b.s.names.schema + " CASCADE")
		testkit.Must(t, Migrate(t.Context(), b.pool, &b.s.options))
		b.pool.Reset() // functions that are known by number
		b.s.front.Reset()
	}
}

// TestReserveInRights: the application's user needs no rights on the tables, and
// whatever it has set does not matter.
func TestReserveInRights(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	role := b.s.names.schema + "_app"
	rights := strings.NewReplacer("SCHEMA own", "SCHEMA "+b.s.names.schema, " app;", " "+role+";").Replace(b.s.names.sql(transactionRights))
	shared().Query(fmt.Sprintf(`CREATE ROLE %[1]s LOGIN; %[2]s GRANT INSERT ON %[3]s TO %[1]s; CREATE SCHEMA %[1]s AUTHORIZATION %[1]s;
		CREATE FUNCTION %[1]s.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS 'SELECT ''3''::xid8';
		CREATE FUNCTION %[1]s.no(xid8, xid8) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
		CREATE OPERATOR %[1]s.= (FUNCTION = %[1]s.no, LEFTARG = xid8, RIGHTARG = xid8)`, role, rights, b.ledger))
	for _, settings := range []string{
		"search_path = " + role + ", pg_catalog", "lock_timeout = '1ms'", "role = " + role, "standard_conforming_strings = on",
		"bytea_output = 'escape'", "intervalstyle = 'sql_standard'", "datestyle = 'German'",
	} {
		shared().Query(fmt.Sprintf("ALTER ROLE %s SET %s", role, settings))
	}
	pool, err := pgxpool.New(t.Context(), strings.Replace(shared().URL(), "//postgres@", "//"+role+"@", 1))
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	b.pool = pool
	e := b.enqueue(t, "pgx", "k")
	p := b.reserve(t, e, "k", nil)
	testkit.Must(t, e.commit())
	if b.ahead(t, p) != 0 {
		t.Error("the place does not stand")
	}
	for _, what := range []string{"SELECT FROM @waiter", "SELECT nextval('@number')"} {
		if _, err := b.pool.Exec(t.Context(), b.s.names.sql(what)); code(err) != "42501" {
			t.Errorf("%s: %v, want that it is forbidden", what, err)
		}
	}
	shared().Query(fmt.Sprintf(b.s.names.sql("REVOKE EXECUTE ON FUNCTION @reserve_in FROM %s"), role))
	e = b.enqueue(t, "pgx", "k")
	if _, err := b.client.ReserveIn(t.Context(), e, "k", time.Hour, nil); !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), "README") {
		t.Errorf("%v, want ErrUnauthorized", err)
	}
}
