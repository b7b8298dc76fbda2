package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// ledger is a store with a table of the application's beside it.
type ledger struct {
	t  testing.TB
	s  *Store
	db *sql.DB
	tr *transactor
	c  *dibs.Client
}

// newLedger makes the table in the file, which is the application's if shared.
func newLedger(t testing.TB, path string, o *Options) *ledger {
	t.Helper()
	s := openTest(t, path, o, hostClock)
	db, err := s.OpenDB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS ledger (k TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	c, err := dibs.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &ledger{t: t, s: s, db: db, tr: s.Transactions(db).(*transactor), c: c}
}

func book(ctx context.Context, tx *sql.Tx, k string) (string, error) {
	_, err := tx.ExecContext(ctx, "INSERT INTO ledger (k) VALUES (?)", k)
	return "booked " + k, err
}

// once books under a key.
func (l *ledger) once(k string) (string, error) {
	return OnceTx(l.t.Context(), l.c, l.tr, k, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
		return book(ctx, tx, k)
	})
}

func (l *ledger) rows(k string) (n int) {
	l.t.Helper()
	if err := l.db.QueryRowContext(l.t.Context(), "SELECT count(*) FROM ledger WHERE k = ?", k).Scan(&n); err != nil {
		l.t.Fatal(err)
	}
	return n
}

func (l *ledger) want(k string, n int) {
	l.t.Helper()
	if got := l.rows(k); got != n {
		l.t.Errorf("the ledger has %d rows of %q, not %d", got, k, n)
	}
}

// begin claims a key and begins a transaction that books it.
func (l *ledger) begin(ctx context.Context, c dibs.Claim) (dibs.Transaction, *sql.Tx) {
	l.t.Helper()
	mustGrant(l.t, l.s, c)
	tx, err := l.tr.Begin(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	inner, ok := Tx(dibs.WithTransaction(ctx, tx))
	if !ok {
		_, err := Begin(dibs.WithTransaction(ctx, tx))
		l.t.Fatal("no transaction: ", err)
	}
	if _, err := book(ctx, inner, c.Key.Name); err != nil {
		l.t.Fatal(err)
	}
	return tx, inner
}

func keep(c dibs.Claim) dibs.Settlement {
	return dibs.Settlement{Key: c.Key, Token: c.Token, Outcome: dibs.Keep, Data: []byte("answer"), Retention: time.Hour}
}

// asked is a claim that a record answers.
func asked(name string) dibs.Claim {
	c := lock(name)
	c.MaxAge = dibs.AnyAge
	return c
}

func TestOnceTx(t *testing.T) {
	for _, shared := range []bool{false, true} {
		l := newLedger(t, testFile(t), &Options{Shared: shared})
		for range 3 {
			got, err := l.once("k")
			if err != nil || got != "booked k" {
				t.Errorf("once: %q, %v", got, err)
			}
		}
		l.want("k", 1)

		fails := errors.New("no")
		_, err := OnceTx(t.Context(), l.c, l.tr, "fails", nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
			_, err := book(ctx, tx, "fails")
			return "", errors.Join(err, fails)
		})
		if !errors.Is(err, fails) {
			t.Errorf("a run that failed: %v", err)
		}
		l.want("fails", 0)
		if _, err := l.once("fails"); err != nil {
			t.Error(err)
		}
		l.want("fails", 1)

		func() {
			defer func() { _ = recover() }()
			_, _ = OnceTx(t.Context(), l.c, l.tr, "panics", nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
				_, _ = book(ctx, tx, "panics")
				panic("no")
			})
		}()
		l.want("panics", 0)
		if _, err := l.once("panics"); err != nil {
			t.Error(err)
		}
	}
}

// One that nobody asked for settles the key all the same, and locks nothing.
func TestTransactionNobodyAskedFor(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	for range 2 {
		got, err := dibs.OnceIn(t.Context(), l.c, l.tr, "k", nil, func(context.Context) (int, error) {
			return 7, l.c.Do(t.Context(), "another", func(context.Context) error { return nil })
		})
		if err != nil || got != 7 {
			t.Errorf("once: %v, %v", got, err)
		}
	}
}

// The claim is one statement, the note is one, and there is no other when OpenDB
// opened the database.
func TestStatementsOfATransaction(t *testing.T) {
	path := testFile(t)
	l := newLedger(t, path, nil)
	foreign, err := sql.Open("sqlite", "file:"+filepath.ToSlash(path)+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	for _, test := range []struct {
		name string
		db   *sql.DB
		want int
	}{{"OpenDB", l.db, 1}, {"the application's", foreign, 2}} {
		n := 0
		l.tr = l.s.Transactions(test.db).(*transactor)
		l.tr.counted = func() { n++ }
		if got, err := l.once(test.name); err != nil || got != "booked "+test.name {
			t.Errorf("%s: %q, %v", test.name, got, err)
		}
		if n != test.want {
			t.Errorf("%s: %d statements besides the claim, not %d", test.name, n, test.want)
		}
		l.want(test.name, 1)
	}
}

// The key is settled only under a lease that stands.
func TestNoteOfALostLease(t *testing.T) {
	c := newTestClock("a", time.Hour)
	path := testFile(t)
	l := newLedger(t, path, &Options{PruneEvery: -1})
	s := openTest(t, path, &Options{PruneEvery: -1}, hostClock)
	for _, test := range []struct {
		name string
		lose func(dibs.Claim)
	}{
		{"another token", func(c dibs.Claim) { mustSettle(t, s, release(c)); mustGrant(t, s, lock(c.Key.Name)) }},
		{"released", func(c dibs.Claim) { mustSettle(t, s, release(c)) }},
		{"kept", func(c dibs.Claim) { mustSettle(t, s, keep(c)) }},
		{"evicted", func(c dibs.Claim) {
			if n, err := s.Evict(t.Context(), c.Key, ""); n != 1 || err != nil {
				t.Error(n, err)
			}
		}},
	} {
		c := lock(test.name)
		mustGrant(t, l.s, c)
		test.lose(c)
		tx, err := l.tr.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inner, _ := Tx(dibs.WithTransaction(t.Context(), tx))
		if _, err := book(t.Context(), inner, test.name); err != nil {
			t.Error(err)
		}
		x := keep(c)
		x.Data = []byte("another answer")
		if err := tx.Commit(t.Context(), x); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("%s: commit: %v", test.name, err)
		}
		l.want(test.name, 0)
	}

	// One that has run out, by the clock of the store.
	path = testFile(t)
	timed := openTest(t, path, &Options{PruneEvery: -1}, c.clock())
	db, err := timed.OpenDB()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE ledger (k TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	l = &ledger{t: t, s: timed, db: db, tr: timed.Transactions(db).(*transactor)}
	for _, passed := range []time.Duration{time.Minute - time.Microsecond, time.Minute} {
		claim := lock(passed.String())
		tx, _ := l.begin(t.Context(), claim)
		c.pass(passed)
		err := tx.Commit(t.Context(), keep(claim))
		if passed < time.Minute {
			if err != nil {
				t.Errorf("in the last moment of the lease: %v", err)
			}
			l.want(claim.Key.Name, 1)
			continue
		}
		if !errors.Is(err, dibs.ErrLost) {
			t.Errorf("at the end of the lease: %v", err)
		}
		l.want(claim.Key.Name, 0)
	}
}

// A settlement that was noted down is one from then on, also when its process dies
// before it does what follows, and its lease would have run out.
func TestNoteOfAProcessThatDied(t *testing.T) {
	for name, look := range map[string]func(t *testing.T, s *Store, c *testClock) dibs.Answer{
		"claim": func(t *testing.T, s *Store, _ *testClock) dibs.Answer { return claimOne(t, s, asked("k")) },
		"look": func(t *testing.T, s *Store, _ *testClock) dibs.Answer {
			ask := asked("k")
			ask.Mode = dibs.Look
			return claimOne(t, s, ask)
		},
		"claim after its end": func(t *testing.T, s *Store, c *testClock) dibs.Answer {
			c.pass(10 * time.Minute)
			return claimOne(t, s, asked("k"))
		},
		"prune after its end": func(t *testing.T, s *Store, c *testClock) dibs.Answer {
			c.pass(10 * time.Minute)
			if _, err := s.Prune(t.Context(), 0); err != nil {
				t.Error(err)
			}
			wantLeases(t, s, 0)
			return claimOne(t, s, asked("k"))
		},
		"list": func(t *testing.T, s *Store, _ *testClock) dibs.Answer {
			n := 0
			for e, err := range s.List(t.Context(), dibs.Query{Data: true}) {
				n++
				if err != nil || e.Condition != dibs.ConditionDone || string(e.Record.Data) != "answer" || len(e.Attempts) != 0 {
					t.Errorf("the list has %+v, %v", e, err)
				}
			}
			if n != 1 {
				t.Errorf("the list has %d keys", n)
			}
			return claimOne(t, s, asked("k"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestClock("a", time.Hour)
			path := testFile(t)
			s := openTest(t, path, &Options{PruneEvery: -1}, c.clock())
			claim := lock("k")
			claim.AtMostOnce = true // were it taken for abandoned, it would be unknown
			noteOnly(t, s, claim, keep(claim))
			wantLeases(t, s, 1)
			errs := []error{nil}
			if err := s.Renew(t.Context(), []dibs.Renewal{{Key: claim.Key, Token: claim.Token, TTL: time.Minute}}, errs); err != nil || !errors.Is(errs[0], dibs.ErrLost) {
				t.Errorf("a renewal after the settlement: %v, %v", err, errs)
			}
			other := openTest(t, path, &Options{PruneEvery: -1}, c.clock())
			c.pass(time.Second)
			a := look(t, other, c)
			wantState(t, name, a, dibs.Done)
			if string(a.Record.Data) != "answer" || a.Record.Age < time.Second || a.Record.Age+a.Record.Left != time.Hour {
				t.Errorf("the record is %q, %v old, %v left", a.Record.Data, a.Record.Age, a.Record.Left)
			}
			wantLeases(t, s, 0)
			mustSettle(t, s, keep(claim)) // sent again
		})
	}
}

// After a reboot store time goes on from when our own transactions last saw it, which
// may be before the note.
func TestNoteBeforeAReboot(t *testing.T) {
	path := testFile(t)
	before := newTestClock("first boot", time.Hour)
	s, err := open(path, &Options{PruneEvery: -1}, before.clock())
	if err != nil {
		t.Fatal(err)
	}
	claim := lock("k")
	mustGrant(t, s, claim)
	before.pass(30 * time.Second)
	noted := keep(claim)
	noted.Retention = time.Minute
	note(t, s, noted)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	after := newTestClock("second boot", time.Second)
	s = openTest(t, path, &Options{PruneEvery: -1}, after.clock())
	a := claimOne(t, s, asked("k"))
	wantState(t, "after the reboot", a, dibs.Done)
	if a.Record.Age != 0 || a.Record.Left != time.Minute {
		t.Errorf("the record is %v old and has %v left", a.Record.Age, a.Record.Left)
	}
	after.pass(time.Minute)
	mustGrant(t, s, asked("k"))
}

// What ended before anybody looked answers nobody, and takes no places away.
func TestNoteWithoutRetention(t *testing.T) {
	c := newTestClock("a", time.Hour)
	s := openTest(t, testFile(t), &Options{PruneEvery: -1}, c.clock())
	claim := lock("k")
	mustGrant(t, s, claim)
	waiter := asked("k")
	waiter.Mode, waiter.Place = dibs.Queue, time.Hour
	wantState(t, "a waiter", claimOne(t, s, waiter), dibs.Held)
	x := keep(claim)
	x.Retention = time.Second
	note(t, s, x)
	c.pass(2 * time.Second)
	wantState(t, "whoever comes then", claimOne(t, s, asked("k")), dibs.Held)
	if a := mustGrant(t, s, waiter); a.Attempt != 1 {
		t.Errorf("the waiter's attempt is %d", a.Attempt)
	}
}

// noteOnly claims a key and has a process note its settlement and die.
func noteOnly(t testing.TB, s *Store, c dibs.Claim, x dibs.Settlement) {
	t.Helper()
	mustGrant(t, s, c)
	note(t, s, x)
}

func note(t testing.TB, s *Store, x dibs.Settlement) {
	t.Helper()
	db, err := s.OpenDB()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	b := &transactor{s: s, db: db, behind: true}
	tx, err := b.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Begin(dibs.WithTransaction(t.Context(), tx)); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context(), x); err != nil {
		t.Fatal(err)
	}
}

func wantLeases(t testing.TB, s *Store, want int64) {
	t.Helper()
	conn, err := lite.Open(s.full, lite.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if n, err := conn.Query(s.tables.sql("SELECT count(*) FROM @lease")); err != nil || n != want {
		t.Errorf("the file has %d leases, not %d (%v)", n, want, err)
	}
}

// Whoever ends the transaction by themselves has done nothing.
func TestRunEndsItsTransaction(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	exec := func(tx *sql.Tx, statements ...string) error {
		var errs []error
		for _, s := range statements {
			_, err := tx.ExecContext(t.Context(), s)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	for _, test := range []struct {
		name    string
		end     func(*sql.Tx) error
		refused bool // what it calls fails
	}{
		{"Commit", (*sql.Tx).Commit, true},
		{"Rollback", (*sql.Tx).Rollback, false},
		{"COMMIT", func(tx *sql.Tx) error { return exec(tx, "COMMIT") }, true},
		{"END", func(tx *sql.Tx) error { return exec(tx, "END TRANSACTION") }, true},
		{"COMMIT and BEGIN", func(tx *sql.Tx) error { return exec(tx, "COMMIT", "BEGIN") }, true},
		{"ROLLBACK", func(tx *sql.Tx) error { return exec(tx, "ROLLBACK") }, false},
		{"ROLLBACK and more", func(tx *sql.Tx) error {
			return exec(tx, "ROLLBACK", "INSERT INTO ledger (k) VALUES ('ROLLBACK and more')")
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := lock(test.name)
			tx, inner := l.begin(t.Context(), c)
			if err := test.end(inner); (err != nil) != test.refused {
				t.Errorf("ending it: %v", err)
			}
			err := tx.Commit(t.Context(), keep(c))
			if !errors.Is(err, dibs.ErrRolledBack) || !errors.Is(err, ErrEnded) {
				t.Errorf("commit: %v", err)
			}
			l.want(test.name, 0)
			wantState(t, "the key", claimOne(t, l.s, asked(test.name)), dibs.Held)
			mustSettle(t, l.s, release(c))
			if _, err := l.db.ExecContext(t.Context(), "INSERT INTO ledger (k) VALUES (?)", test.name); err != nil {
				t.Errorf("the connection refuses other commits: %v", err)
			}
			l.want(test.name, 1)
		})
	}
}

// Savepoints are the run's own.
func TestSavepoints(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	got, err := OnceTx(t.Context(), l.c, l.tr, "k", nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
		for _, s := range []string{
			"SAVEPOINT a", "INSERT INTO ledger (k) VALUES ('undone')", "ROLLBACK TO a", "RELEASE a",
			"SAVEPOINT b", "INSERT INTO ledger (k) VALUES ('k')", "RELEASE b",
		} {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return "", err
			}
		}
		return "done", nil
	})
	if err != nil || got != "done" {
		t.Error(got, err)
	}
	l.want("k", 1)
	l.want("undone", 0)
}

// A transaction whose context ends lets the file go, even if nobody notices.
func TestTransactionOfAContext(t *testing.T) {
	l := newLedger(t, testFile(t), &Options{LockWait: time.Minute})
	ctx, cancel := context.WithCancelCause(t.Context())
	c := lock("k")
	tx, _ := l.begin(ctx, c)
	why := errors.New("out of time")
	cancel(why)
	mustGrant(t, l.s, lock("another"))
	l.want("k", 0)
	if err := tx.Commit(t.Context(), keep(c)); !errors.Is(err, dibs.ErrRolledBack) || !errors.Is(err, why) {
		t.Errorf("commit: %v", err)
	}
	wantState(t, "the key", claimOne(t, l.s, asked("k")), dibs.Held)
}

// While one transaction is open all others wait, in this process and through other
// Stores, and no longer than LockWait.
func TestTransactionsWait(t *testing.T) {
	path := testFile(t)
	l := newLedger(t, path, &Options{LockWait: 100 * time.Millisecond})
	other := newLedger(t, path, &Options{LockWait: 100 * time.Millisecond})
	c := lock("k")
	tx, _ := l.begin(t.Context(), c)
	for _, waits := range []*ledger{l, other} {
		w, err := waits.tr.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = Begin(dibs.WithTransaction(t.Context(), w))
		if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), cures[ErrLocked]) || time.Since(start) > 5*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if _, ok := Tx(dibs.WithTransaction(t.Context(), w)); ok {
			t.Error("there is a transaction all the same")
		}
		if err := w.Commit(t.Context(), keep(c)); !errors.Is(err, dibs.ErrRolledBack) || !errors.Is(err, ErrLocked) || w.Conflicted(err) {
			t.Errorf("commit without one: %v", err)
		}
		if err := waits.s.Claim(t.Context(), []dibs.Claim{lock("other")}, make([]dibs.Answer, 1)); !errors.Is(err, ErrLocked) {
			t.Errorf("a claim meanwhile: %v", err)
		}
	}
	if err := tx.Commit(t.Context(), keep(c)); err != nil {
		t.Fatal(err)
	}
	if _, err := other.once("then"); err != nil {
		t.Error(err)
	}
	l.want("then", 1)
}

// Readers that write later are not in conflict with those who wrote meanwhile.
func TestReadThenWrite(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	if _, err := l.db.ExecContext(t.Context(), "CREATE TABLE balance (n INTEGER)"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.db.ExecContext(t.Context(), "INSERT INTO balance VALUES (0)"); err != nil {
		t.Fatal(err)
	}
	var runs sync.WaitGroup
	for i := range 50 {
		runs.Go(func() {
			_, err := OnceTx(t.Context(), l.c, l.tr, "k"+string(rune('A'+i)), nil, func(ctx context.Context, tx *sql.Tx) (int, error) {
				n := 0
				if err := tx.QueryRowContext(ctx, "SELECT n FROM balance").Scan(&n); err != nil {
					return 0, err
				}
				_, err := tx.ExecContext(ctx, "UPDATE balance SET n = ?", n+1)
				return n, err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	runs.Wait()
	n := 0
	if err := l.db.QueryRowContext(t.Context(), "SELECT n FROM balance").Scan(&n); err != nil || n != 50 {
		t.Errorf("the balance is %d, %v", n, err)
	}
}

func TestOtherDatabase(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	elsewhere := newLedger(t, testFile(t), nil)
	memory, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	for name, db := range map[string]*sql.DB{"another file": elsewhere.db, "memory": memory} {
		l.tr = l.s.Transactions(db).(*transactor)
		if _, err := l.once("k"); !errors.Is(err, ErrOtherDB) || !strings.Contains(err.Error(), "OpenDB") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.s.Transactions(nil).Begin(t.Context()); err == nil {
		t.Error("without a DB there is no error")
	}
	if _, ok := Tx(t.Context()); ok {
		t.Error("a context without a transaction has one")
	}
}

// A record that is too large is committed with nothing.
func TestTransactionWithALargeRecord(t *testing.T) {
	l := newLedger(t, testFile(t), &Options{MaxRecord: 10})
	c := lock("k")
	tx, _ := l.begin(t.Context(), c)
	x := keep(c)
	x.Data = make([]byte, 11)
	if err := tx.Commit(t.Context(), x); !errors.Is(err, dibs.ErrRolledBack) || !errors.Is(err, dibs.ErrFull) {
		t.Errorf("commit: %v", err)
	}
	l.want("k", 0)
}
