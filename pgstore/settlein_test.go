package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestRenewedInTransaction: at the levels with a snapshot, a lease that is renewed
// while the transaction is open makes for a conflict, and a run anew. At read
// committed it does not matter.
func TestRenewedInTransaction(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	for level, conflicts := range map[pgx.TxIsoLevel]bool{pgx.ReadCommitted: false, pgx.RepeatableRead: true, pgx.Serializable: true} {
		ran := 0
		key := string(level)
		_, err := OnceTx(t.Context(), b.client, b.s.Transactions(b.pool, &pgx.TxOptions{IsoLevel: level}), key, nil, func(ctx context.Context, tx pgx.Tx) (int, error) {
			ran++
			if _, err := tx.Exec(ctx, b.entry(key)); err != nil {
				return 0, err
			}
			if ran == 1 {
				lease, _ := dibs.FromContext(ctx)
				if err := lease.Save(ctx, []byte("half")); err != nil { // which renews it
					return 0, err
				}
			}
			return 0, nil
		})
		// The client's own renewal may be in the way of the second run too.
		if err != nil || conflicts != (ran > 1) {
			t.Errorf("%s: %v, after %d runs", level, err, ran)
		}
		if n := b.entries(t, key); n != 1 {
			t.Errorf("%s: %d entries", level, n)
		}
	}
}

// TestLateWaiters: who comes to wait while the transaction is open is answered, or
// granted, when it is committed, also where the transaction does not see them. A
// record is never passed over for a grant.
func TestLateWaiters(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			// Who is not told asks after half a second; the machine is as slow now and
			// then.
			const soon, tries = dibs.Turn * 2 / 5, 10
			took := lateWaiters(t, level)
			for i := 1; i < tries && took > soon; i++ {
				took = lateWaiters(t, level)
			}
			t.Logf("they waited for %v", took)
			if took > soon {
				t.Errorf("they waited for longer than %v, %d times", soon, tries)
			}
		})
	}
}

// lateWaiters has some come to wait before and while a transaction at that level is
// open, and returns how long after its end they had what they want.
func lateWaiters(t *testing.T, level pgx.TxIsoLevel) time.Duration {
	t.Helper()
	b := newBank(t, shared().URL(), nil)
	tr := b.s.Transactions(b.pool, &pgx.TxOptions{IsoLevel: level})
	others := newClient(t, open(t, shared().URL(), namesOf(b.s)), nil)
	asks, locked := make(chan error, 2), make(chan error, 1)
	ask := func() {
		got, err := dibs.Once(t.Context(), others, "k", nil, func(context.Context) (string, error) { return "ran twice", nil })
		if err == nil && got != "answer" {
			err = errors.New(got)
		}
		asks <- err
	}
	waits := func(n int) func() bool {
		return func() bool {
			for e, err := range b.s.List(t.Context(), dibs.Query{Name: "k"}) {
				return err == nil && e.Waiters >= n
			}
			return false
		}
	}
	lease, err := b.client.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	// It does not begin before somebody waits: the first who does changes the
	// key's row.
	go ask()
	ran := 0
	eventually(t, 10*time.Second, "one waits", waits(1))
	tx, err := tr.Begin(lease.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx := dibs.WithTransaction(lease.Context(), tx)
	if own, ok := Tx(ctx); !ok {
		t.Fatal("no transaction")
	} else if _, err := own.Exec(ctx, b.entry("k")); err != nil {
		t.Fatal(err)
	}
	go func() {
		locked <- others.Do(t.Context(), "k", func(context.Context) error { ran++; return nil })
	}()
	eventually(t, 10*time.Second, "a second one waits", waits(2))
	go ask()
	eventually(t, 10*time.Second, "a third one waits", waits(3))
	if err := lease.CompleteIn(t.Context(), tx, []byte(`{"value":"answer"}`), time.Hour); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for range 2 {
		if err := <-asks; err != nil {
			t.Error(err)
		}
	}
	if err := <-locked; err != nil || ran != 1 {
		t.Errorf("%v, %d", err, ran)
	}
	return time.Since(start)
}

// TestRecordBeforeGrant: where nobody sees to those who wait after a transaction with
// a snapshot, they are answered by the record when they ask, and not granted.
func TestRecordBeforeGrant(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	k, holder, first, second := dibs.Key{Name: "k"}, dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
	claim := func(token dibs.Token, mode dibs.Mode) dibs.Answer {
		t.Helper()
		answers := make([]dibs.Answer, 1)
		c := dibs.Claim{Key: k, Token: token, Mode: mode, TTL: time.Minute, Place: time.Minute, Permits: 1, MaxAge: dibs.AnyAge}
		if err := b.s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil || answers[0].Err != nil {
			t.Fatal(err, answers[0].Err)
		}
		return answers[0]
	}
	claim(holder, dibs.Try)
	claim(first, dibs.Queue)
	tx := b.beginMarked(t, pgx.RepeatableRead)
	claim(second, dibs.Queue)
	b.settleIn(t, tx, dibs.Settlement{Key: k, Token: holder, Outcome: dibs.Keep, Data: []byte("answer"), Retention: time.Hour})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, token := range []dibs.Token{dibs.NewToken(), second, first} {
		if a := claim(token, dibs.Queue); a.State != dibs.Done {
			t.Errorf("%+v, want the record", a)
		}
	}
}

// beginMarked begins a transaction as a run's does, by hand.
func (b *bank) beginMarked(t *testing.T, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err == nil {
		_, err = tx.Exec(t.Context(), markSQL+"; "+b.entry("k"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// settleIn settles in it.
func (b *bank) settleIn(t *testing.T, tx pgx.Tx, x dibs.Settlement) {
	t.Helper()
	call, err := b.s.settleIn(&x, true)
	if err == nil {
		_, err = tx.Exec(t.Context(), call.sql, call.args...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestHeldOpen: a process that stops between the settlement and COMMIT keeps those
// waiting who want that key, for two seconds at a time, and nobody else.
func TestHeldOpen(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	claims := func(names ...string) []dibs.Answer {
		t.Helper()
		all, answers := make([]dibs.Claim, len(names)), make([]dibs.Answer, len(names))
		for i, name := range names {
			all[i] = dibs.Claim{Key: dibs.Key{Name: name}, Token: dibs.NewToken(), Mode: dibs.Queue, TTL: time.Minute, Place: time.Minute, Permits: 1, MaxAge: dibs.AnyAge}
			if name == "k" {
				all[i].Token[0], all[i].Token[1] = 0, 0
			}
		}
		if err := b.s.Claim(t.Context(), all, answers); err != nil {
			t.Fatal(err)
		}
		return answers
	}
	token := dibs.NewToken()
	c := dibs.Claim{Key: dibs.Key{Name: "k"}, Token: token, TTL: time.Minute, Permits: 1}
	answers := make([]dibs.Answer, 1)
	if err := b.s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil || answers[0].State != dibs.Granted {
		t.Fatal(err, answers[0])
	}
	tx := b.beginMarked(t, pgx.ReadCommitted)
	b.settleIn(t, tx, dibs.Settlement{Key: c.Key, Token: token, Outcome: dibs.Keep, Data: []byte("answer"), Retention: time.Hour})
	start := time.Now()
	got := claims("a", "k", "z")
	if got[0].State != dibs.Granted || got[2].State != dibs.Granted || !errors.Is(got[1].Err, ErrLocked) {
		t.Errorf("%+v; want grants of the other keys, and ErrLocked", got)
	}
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := claims("k"); got[0].State != dibs.Done {
		t.Errorf("%+v, want the record", got[0])
	}
}

// TestOtherDatabase: a transaction that could not commit an answer with its effect is
// not begun.
func TestOtherDatabase(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	shared().Query("CREATE DATABASE other")
	url := strings.Replace(shared().URL(), "/postgres?", "/other?", 1)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for name, test := range map[string]struct {
		tr dibs.Transactor
		is error
	}{
		"pgx":            {b.s.Transactions(pool, nil), ErrOtherDatabase},
		"sql":            {b.s.SQLTransactions(db, nil), ErrOtherDatabase},
		"pgx, read only": {b.s.Transactions(b.pool, &pgx.TxOptions{AccessMode: pgx.ReadOnly}), ErrReadOnly},
		"sql, read only": {b.s.SQLTransactions(b.db, &sql.TxOptions{ReadOnly: true}), ErrReadOnly},
		"no pool":        {b.s.Transactions(nil, nil), nil},
		"no DB":          {b.s.SQLTransactions(nil, nil), nil},
	} {
		tx, err := test.tr.Begin(t.Context())
		if err == nil || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: %v, %v; want %v", name, tx, err, test.is)
		}
	}
}

// TestTransactionRights: the application's user needs no rights on the tables, and
// whatever it has set does not matter.
func TestTransactionRights(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	role := b.s.names.schema + "_app"
	rights := strings.NewReplacer("SCHEMA own", "SCHEMA "+b.s.names.schema, " app;", " "+role+";").Replace(b.s.names.sql(transactionRights))
	shared().Query(fmt.Sprintf(`CREATE ROLE %[1]s LOGIN; %[2]s GRANT INSERT ON %[3]s TO %[1]s;
		CREATE SCHEMA %[1]s AUTHORIZATION %[1]s`, role, rights, b.ledger))
	// A search_path in which the operators mean something else.
	shared().Query(fmt.Sprintf(`CREATE FUNCTION %[1]s.no(bytea, bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
		CREATE OPERATOR %[1]s.= (FUNCTION = %[1]s.no, LEFTARG = bytea, RIGHTARG = bytea);
		CREATE FUNCTION %[1]s.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT ''nothing'''`, role))
	for _, settings := range []string{
		"search_path = " + role + ", pg_catalog", "lock_timeout = '1ms'", "synchronous_commit = off", "role = " + role,
		"default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on",
	} {
		shared().Query(fmt.Sprintf("ALTER ROLE %s SET %s", role, settings))
	}
	pool, err := pgxpool.New(t.Context(), strings.Replace(shared().URL(), "//postgres@", "//"+role+"@", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if got, err := b.book(t.Context(), b.s.Transactions(pool, nil), "k"); err != nil || got != "booked k" || b.entries(t, "k") != 1 {
		t.Errorf("%q, %v, %d entries", got, err, b.entries(t, "k"))
	}
	if _, err := pool.Exec(t.Context(), b.s.names.sql("SELECT FROM @key")); code(err) != "42501" {
		t.Errorf("reading the table: %v, want that it is forbidden", err)
	}
	// Where nobody may call the function, that is said.
	shared().Query(fmt.Sprintf(b.s.names.sql("REVOKE EXECUTE ON FUNCTION @settle_in FROM %s"), role))
	if _, err := b.book(t.Context(), b.s.Transactions(pool, nil), "l"); !errors.Is(err, ErrUnauthorized) || !errors.Is(err, dibs.ErrRolledBack) {
		t.Errorf("%v, want ErrUnauthorized and ErrRolledBack", err)
	}
	if n := b.entries(t, "l"); n != 0 {
		t.Errorf("%d entries of a run whose key could not be settled", n)
	}
}

// TestDurableTransaction: what is answered was written to the disk, also where the
// application does without.
func TestDurableTransaction(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL()+"&synchronous_commit=off", nil)
	c := dibs.Claim{Key: dibs.Key{Name: "k"}, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1}
	if err := b.s.Claim(t.Context(), []dibs.Claim{c}, make([]dibs.Answer, 1)); err != nil {
		t.Fatal(err)
	}
	tx := b.beginMarked(t, pgx.ReadCommitted)
	defer tx.Rollback(context.Background())
	level := func() (level string) {
		t.Helper()
		if err := tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&level); err != nil {
			t.Fatal(err)
		}
		return level
	}
	if got := level(); got != "off" {
		t.Fatalf("synchronous_commit is %s", got)
	}
	b.settleIn(t, tx, dibs.Settlement{Key: c.Key, Token: c.Token})
	if got := level(); got != "on" {
		t.Errorf("synchronous_commit is %s", got)
	}
}

// TestAbandonedTransaction: when its context ends, a transaction keeps nothing locked,
// although nobody ends it.
func TestAbandonedTransaction(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr dibs.Transactor) {
		if _, err := b.pool.Exec(t.Context(), b.entry("row")); err != nil {
			t.Fatal(err)
		}
		touch := "UPDATE " + b.ledger + " SET what = 'row'"
		ctx, cancel := context.WithCancel(t.Context())
		tx, err := tr.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if own, ok := Tx(dibs.WithTransaction(ctx, tx)); ok {
			_, err = own.Exec(ctx, touch)
		} else if own, ok := SQLTx(dibs.WithTransaction(ctx, tx)); ok {
			_, err = own.ExecContext(ctx, touch)
		}
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		waiting, done := context.WithTimeout(t.Context(), 20*time.Second)
		defer done()
		if _, err := b.pool.Exec(waiting, touch); err != nil {
			t.Errorf("the row is locked: %v", err)
		}
		if err := tx.Commit(t.Context(), dibs.Settlement{Key: dibs.Key{Name: "k"}, Token: dibs.NewToken()}); !errors.Is(err, dibs.ErrRolledBack) {
			t.Errorf("%v, want ErrRolledBack", err)
		}
		tx.Rollback()
	})
}

// TestUnheardCommit: where the answer to COMMIT is lost, it is found out.
func TestUnheardCommit(t *testing.T) {
	t.Parallel()
	wire := servertest.NewWire(t, shared().Addr())
	b := newBank(t, shared().URL(), nil)
	for name, open := range map[string]func(url string) dibs.Transactor{
		"pgx": func(url string) dibs.Transactor {
			pool, err := pgxpool.New(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			return b.s.Transactions(pool, nil)
		},
		"sql": func(url string) dibs.Transactor {
			db, err := sql.Open("pgx", url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			return b.s.SQLTransactions(db, nil)
		},
	} {
		tr := open(shared().URLAt(wire.Addr()))
		var lost <-chan struct{}
		got, err := once(t.Context(), b.client, tr, name, nil, func(ctx context.Context, w *writer) (string, error) {
			err := w.exec(ctx, b.entry(name))
			lost = wire.LoseReplyTo("commit")
			return "answer", err
		})
		<-lost
		if err != nil || got != "answer" || b.entries(t, name) != 1 {
			t.Errorf("%s: %q, %v, %d entries", name, got, err, b.entries(t, name))
		}
		got, err = b.book(t.Context(), tr, name)
		if err != nil || got != "answer" {
			t.Errorf("%s: then %q, %v", name, got, err)
		}
	}
}
