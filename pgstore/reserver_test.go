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
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
)

// enqueuing is a transaction of either kind in which the application makes an entry and
// reserves a place.
type enqueuing struct {
	dibs.Reserver
	exec             func(sql string) error
	commit, rollback func() error
}

// enqueue begins a transaction with an entry, in that way.
func (b *bank) enqueue(t testing.TB, way, what string) *enqueuing {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var e *enqueuing
	if way == "sql" {
		tx, err := b.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		e = &enqueuing{Reserver: b.s.SQLReserver(tx), commit: tx.Commit, rollback: tx.Rollback, exec: func(sql string) error {
			_, err := tx.ExecContext(ctx, sql)
			return err
		}}
	} else {
		tx, err := b.pool.BeginTx(ctx, pgx.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		e = &enqueuing{Reserver: b.s.Reserver(tx), exec: func(sql string) error {
			_, err := tx.Exec(ctx, sql)
			return err
		}}
		e.commit = func() error { return tx.Commit(ctx) }
		e.rollback = func() error { return tx.Rollback(ctx) }
	}
	t.Cleanup(func() { _ = e.rollback() })
	if err := e.exec(b.entry(what)); err != nil {
		t.Fatal(err)
	}
	return e
}

// reserve reserves a place in the transaction.
func (b *bank) reserve(t testing.TB, e *enqueuing, key string, o *dibs.AcquireOptions) dibs.Place {
	t.Helper()
	p, err := b.client.ReserveIn(t.Context(), e, key, time.Hour, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// places counts those that stand in the queue of a key.
func (b *bank) places(t testing.TB, key string) int {
	t.Helper()
	for e, err := range b.s.List(t.Context(), dibs.Query{Name: key}) {
		if err != nil {
			t.Fatal(err)
		}
		return e.Waiters
	}
	return 0
}

// ahead returns how many places come before that one; -1 if it does not stand.
func (b *bank) ahead(t testing.TB, p dibs.Place) int {
	t.Helper()
	answers := make([]dibs.Answer, 1)
	c := dibs.Claim{Key: p.Key, Token: p.Token, Mode: dibs.Look, Permits: 1}
	if err := b.s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil || answers[0].Err != nil {
		t.Fatal(err, answers[0].Err)
	}
	switch a := answers[0]; {
	case a.State == dibs.Held && a.Queued:
		return a.Ahead
	case a.State == dibs.Free && b.places(t, p.Key.Name) > 0:
		return 0
	}
	return -1
}

// inEachWay runs a test with each kind of transaction, also through a pooler.
func inEachWay(t *testing.T, test func(t *testing.T, b *bank, way string)) {
	t.Parallel()
	for _, pooled := range []bool{false, true} {
		for _, way := range []string{"pgx", "sql"} {
			name, url := way, shared().URL
			if pooled {
				name, url = way+", PgBouncer", sharedPooler().URL
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, newBank(t, url(), nil), way)
			})
		}
	}
}

// TestReserveIn: a place is there from the commit on, in the order of the commits, and
// not without it.
func TestReserveIn(t *testing.T) {
	inEachWay(t, func(t *testing.T, b *bank, way string) {
		first, second, third := b.enqueue(t, way, "k"), b.enqueue(t, way, "k"), b.enqueue(t, way, "k")
		a, bb, c := b.reserve(t, first, "k", nil), b.reserve(t, second, "k", nil), b.reserve(t, third, "k", nil)
		d := b.reserve(t, third, "k", nil)
		outside, err := b.client.Reserve(t.Context(), "k", time.Hour, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := b.places(t, "k"); n != 1 {
			t.Errorf("%d places before anything was committed, want 1", n)
		}
		for _, e := range []*enqueuing{third, first} {
			if err := e.commit(); err != nil {
				t.Fatal(err)
			}
		}
		if err := second.rollback(); err != nil {
			t.Fatal(err)
		}
		if n := b.places(t, "k"); n != 4 || b.entries(t, "k") != 2 {
			t.Errorf("%d places and %d entries, want 4 and 2", n, b.entries(t, "k"))
		}
		if err := b.client.GiveUp(t.Context(), bb); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("%v; the place of a transaction that was rolled back is there", err)
		}
		for i, p := range []dibs.Place{outside, c, d, a} {
			if n := b.ahead(t, p); n != 0 {
				t.Errorf("%d come before place %d, want none", n, i)
			}
			lease, err := b.client.Redeem(t.Context(), p, &dibs.AcquireOptions{NoWait: true})
			if err != nil {
				t.Fatalf("place %d: %v", i, err)
			}
			if err := lease.Release(); err != nil {
				t.Error(err)
			}
		}
		if n := b.places(t, "k"); n != 0 {
			t.Errorf("%d places are left", n)
		}
	})
}

// TestReserveInHasHold: what the options say of a place holds for one that a
// transaction reserves.
func TestReserveInHasHold(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	e := b.enqueue(t, "pgx", "k")
	hold := 300 * time.Millisecond
	p := b.reserve(t, e, "k", &dibs.AcquireOptions{Hold: hold})
	if err := e.commit(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	lease, err := b.client.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < hold {
		t.Errorf("it was in the way for %v, want %v", took, hold)
	}
	if err := errors.Join(lease.Release(), b.client.GiveUp(t.Context(), p)); !errors.Is(err, dibs.ErrLost) {
		t.Errorf("%v, want that the place is lost", err)
	}
}

// TestReserveInHoldsNobodyUp: while a transaction that has reserved a place is open,
// the key's lease is renewed, handed over and taken as if it were not; also where the
// application wants its constraints looked at once.
func TestReserveInHoldsNobodyUp(t *testing.T) {
	inEachWay(t, func(t *testing.T, b *bank, way string) {
		lease, err := b.client.Acquire(t.Context(), "k", &dibs.AcquireOptions{TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		e := b.enqueue(t, way, "k")
		if err := e.exec("SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		p := b.reserve(t, e, "k", nil)
		open := time.NewTimer(4 * time.Second)
		select {
		case <-open.C:
		case <-lease.Context().Done():
			t.Fatalf("the lease was lost after %v: %v", time.Since(start), lease.Err())
		}
		next := make(chan error, 1)
		go func() { next <- b.client.Do(t.Context(), "k", func(context.Context) error { return nil }) }()
		awaitQueue(t, b.s, "k")
		start = time.Now()
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
		if err := <-next; err != nil {
			t.Error(err)
		}
		if err := b.client.TryDo(t.Context(), "k", func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("the others took %v", took)
		}
		if err := e.commit(); err != nil {
			t.Fatal(err)
		}
		if b.ahead(t, p) != 0 {
			t.Error("the place does not stand")
		}
	})
}

// TestReserveInAtOnce: however many reserve places of the same keys, in whatever order,
// while others take and renew leases of them, nobody meets a deadlock and no place is
// lost.
func TestReserveInAtOnce(t *testing.T) {
	inEachWay(t, func(t *testing.T, b *bank, way string) {
		const enqueuers, each, keys = 32, 4, 3
		var stop atomic.Bool
		var work, others sync.WaitGroup
		for g := range 2 {
			others.Go(func() {
				for !stop.Load() {
					k := dibs.Key{Name: fmt.Sprint(rand.IntN(keys))}
					c := dibs.Claim{Key: k, Token: dibs.NewToken(), Mode: dibs.Mode(g), TTL: time.Second, Place: time.Second, Permits: 1}
					errs := make([]error, 1)
					if err := errors.Join(
						b.s.Claim(t.Context(), []dibs.Claim{c}, make([]dibs.Answer, 1)),
						b.s.Renew(t.Context(), []dibs.Renewal{{Key: k, Token: c.Token, TTL: time.Second}}, errs),
						b.s.Settle(t.Context(), []dibs.Settlement{{Key: k, Token: c.Token}}, errs),
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
					if err := e.commit(); err != nil {
						t.Error(err)
					}
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
		if n := shared().Query(b.s.names.sql("SELECT count(*) FROM @pending"))[0][0]; n != "0" {
			t.Errorf("%s rows are left", n)
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
				if err != nil {
					t.Error(err)
				}
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
	// One that was rolled back has reserved nothing.
	boom := errors.New("boom")
	_, err := OnceTx(t.Context(), b.client, tr, "fails", nil, func(ctx context.Context, tx pgx.Tx) (int, error) {
		_, err := b.client.ReserveIn(ctx, b.s.Reserver(tx), "k", time.Hour, nil)
		return 0, errors.Join(err, boom)
	})
	if !errors.Is(err, boom) || b.places(t, "k") != 0 {
		t.Errorf("%v, %d places", err, b.places(t, "k"))
	}
}

// TestReserveInSavepoint: what is rolled back in part has not reserved that part; and
// one may be taken before the end, by the application's own doing.
func TestReserveInSavepoint(t *testing.T) {
	inEachWay(t, func(t *testing.T, b *bank, way string) {
		e := b.enqueue(t, way, "k")
		kept := b.reserve(t, e, "k", nil)
		if err := e.exec("SAVEPOINT one"); err != nil {
			t.Fatal(err)
		}
		gone := b.reserve(t, e, "k", nil)
		if err := e.exec("ROLLBACK TO one"); err != nil {
			t.Fatal(err)
		}
		last := b.reserve(t, e, "k", nil)
		if err := e.exec("SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
			t.Fatal(err)
		}
		later := b.reserve(t, e, "k", nil)
		if err := e.commit(); err != nil {
			t.Fatal(err)
		}
		for i, p := range []dibs.Place{kept, last, later} {
			if n := b.ahead(t, p); n != i {
				t.Errorf("%d places before number %d", n, i)
			}
		}
		if n := b.places(t, "k"); n != 3 || b.client.GiveUp(t.Context(), gone) == nil {
			t.Errorf("%d places, want 3", n)
		}
	})
}

// TestReserveInVain: where a place cannot be had the transaction is committed without
// it, and with the others.
func TestReserveInVain(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), &Options{MaxWaiters: 2})
	ctx := t.Context()
	occupy := func(key string, c dibs.Claim) dibs.Claim {
		c.Key, c.Token, c.TTL = dibs.Key{Name: key}, dibs.NewToken(), time.Hour
		answers := make([]dibs.Answer, 1)
		if err := b.s.Claim(ctx, []dibs.Claim{c}, answers); err != nil || answers[0].State != dibs.Granted {
			t.Fatal(err, answers[0])
		}
		return c
	}
	occupy("permits", dibs.Claim{Permits: 3})
	occupy("mismatch", dibs.Claim{Permits: 1, Fingerprint: dibs.Fingerprint{1}})
	lost := occupy("unknown", dibs.Claim{Permits: 1, AtMostOnce: true})
	errs := make([]error, 1)
	if err := b.s.Settle(ctx, []dibs.Settlement{{Key: lost.Key, Token: lost.Token, Outcome: dibs.Abandon}}, errs); err != nil || errs[0] != nil {
		t.Fatal(err, errs)
	}
	for range 2 {
		if _, err := b.client.Reserve(ctx, "full", time.Hour, nil); err != nil {
			t.Fatal(err)
		}
	}
	var warned atomic.Pointer[pgconn.Notice]
	config := b.pool.Config()
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { warned.Store(n) }
	var err error
	if b.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.pool.Close)
	for _, key := range []string{"permits", "mismatch", "unknown", "full"} {
		before := b.places(t, key)
		e := b.enqueue(t, "pgx", key)
		b.reserve(t, e, "good", nil)
		p := b.reserve(t, e, key, &dibs.AcquireOptions{Fingerprint: dibs.Fingerprint{2}})
		if err := e.commit(); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if n := b.entries(t, key); n != 1 || b.places(t, key) != before {
			t.Errorf("%s: %d entries, %d places", key, n, b.places(t, key))
		}
		if err := b.client.GiveUp(ctx, p); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("%s: the place was taken: %v", key, err)
		}
		if n := warned.Swap(nil); n == nil || !strings.Contains(n.Message, "1 of the 2 places") {
			t.Errorf("%s: warned of %+v", key, n)
		}
		if n := b.places(t, "good"); n != 1 {
			t.Errorf("%s: %d places of another key, want 1", key, n)
		}
		shared().Query(b.s.names.sql(`DELETE FROM @waiter WHERE k = '\x00676f6f64'`))
	}
}

// TestReserveInRefused: what cannot work is said at once, and the transaction can go
// on without.
func TestReserveInRefused(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	good := dibs.Claim{Key: dibs.Key{Name: "k"}, Token: dibs.NewToken(), Mode: dibs.Reserve, Place: time.Hour, Permits: 1}
	invalid, queue := good, good
	invalid.Place, queue.Mode, queue.TTL = 0, dibs.Queue, time.Second
	shared().Query("CREATE DATABASE " + b.s.names.schema)
	elsewhere := strings.Replace(shared().URL(), "/postgres?", "/"+b.s.names.schema+"?", 1)
	open(t, elsewhere, &Options{Schema: b.s.names.schema}) // which has the same tables
	other, err := pgxpool.New(t.Context(), elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for name, test := range map[string]struct {
		pool    *pgxpool.Pool
		options pgx.TxOptions
		claim   dibs.Claim
		is      error
		says    string
	}{
		"repeatable read": {b.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, good, ErrIsolation, "read committed"},
		"serializable":    {b.pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, good, ErrIsolation, "Client.Reserve"},
		"other database":  {other, pgx.TxOptions{}, good, ErrOtherDatabase, "pool"},
		"invalid":         {b.pool, pgx.TxOptions{}, invalid, nil, "Claim.Place"},
		"another mode":    {b.pool, pgx.TxOptions{}, queue, nil, "Claim.Mode"},
	} {
		err := pgx.BeginTxFunc(t.Context(), test.pool, test.options, func(tx pgx.Tx) error {
			err := b.s.Reserver(tx).Reserve(t.Context(), []dibs.Claim{good, test.claim})
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
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		r    dibs.Reserver
		is   error
		says string
	}{
		{b.s.Reserver(tx), ErrReadOnly, "read-write"},
		{b.s.Reserver(tx), ErrAborted, "savepoint"}, // by that
	} {
		if err := test.r.Reserve(t.Context(), []dibs.Claim{good}); !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v; want %v, and %q", err, test.is, test.says)
		}
	}
	_ = tx.Rollback(t.Context())
	for _, test := range []struct {
		r    dibs.Reserver
		is   error
		says string
	}{
		{b.s.Reserver(tx), pgx.ErrTxClosed, "over"},
		{b.s.Reserver(nil), nil, "no transaction"},
		{b.s.SQLReserver(nil), nil, "no transaction"},
	} {
		err := test.r.Reserve(t.Context(), []dibs.Claim{good})
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
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.client.ReserveIn(t.Context(), b.s.Reserver(tx), "k", time.Hour, nil); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := b.places(t, "k"); n != 1 {
			t.Errorf("%d places", n)
		}
		shared().Query("DROP SCHEMA " + b.s.names.schema + " CASCADE")
		if err := Migrate(t.Context(), b.pool, &b.s.options); err != nil {
			t.Fatal(err)
		}
		b.pool.Reset() // functions that are known by number
		b.s.front.Reset()
	}
}

// TestReserveInLocked: where somebody keeps a key's row locked for long, COMMIT fails
// with the cure, and nothing was done.
func TestReserveInLocked(t *testing.T) {
	inEachWay(t, func(t *testing.T, b *bank, way string) {
		cycle(t, b.s, dibs.Key{Name: "k"}) // so that there is a row
		locker := b.enqueue(t, way, "locker")
		if err := locker.exec(b.s.names.sql(`SELECT FROM @key WHERE k = '\x006b' FOR UPDATE`)); err != nil {
			t.Fatal(err)
		}
		e := b.enqueue(t, way, "k")
		b.reserve(t, e, "k", nil)
		err := e.commit()
		said, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || said.Code != "55P03" || !strings.Contains(said.Message, "dibs") || !strings.Contains(said.Hint, "pg_stat_activity") {
			t.Errorf("%+v, want the cure", err)
		}
		if err := locker.rollback(); err != nil {
			t.Fatal(err)
		}
		if n := b.entries(t, "k"); n != 0 || b.places(t, "k") != 0 {
			t.Errorf("%d entries, %d places", n, b.places(t, "k"))
		}
	})
}

// TestReserveInPrepared: a transaction that would keep a key locked between its two
// phases is refused.
func TestReserveInPrepared(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	e := b.enqueue(t, "pgx", "k")
	b.reserve(t, e, "k", nil)
	err := e.exec(" prepare\n transaction 'one'")
	if said, ok := errors.AsType[*pgconn.PgError](err); !ok || !strings.Contains(said.Message, "dibs") || !strings.Contains(said.Hint, "one phase") {
		t.Errorf("%v, want the cure", err)
	}
	_ = e.rollback()
	if n := b.entries(t, "k"); n != 0 || b.places(t, "k") != 0 {
		t.Errorf("%d entries, %d places", n, b.places(t, "k"))
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b.pool = pool
	e := b.enqueue(t, "pgx", "k")
	p := b.reserve(t, e, "k", nil)
	if err := e.commit(); err != nil {
		t.Fatal(err)
	}
	if b.ahead(t, p) != 0 {
		t.Error("the place does not stand")
	}
	for _, what := range []string{"INSERT INTO @pending VALUES ('3', 1, '{}')", "SELECT FROM @pending", "SELECT @take_places(NULL)"} {
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
