package sqlitestore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// The key is settled only under a lease that stands.
func TestNoteOfALostLease(t *testing.T) {
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

}

// A lease lasts until its end, by the clock of the store.
func TestNoteAtTheEndOfALease(t *testing.T) {
	for _, passed := range []time.Duration{time.Minute - time.Microsecond, time.Minute} {
		rows, err := commitAfter(t, passed, nil)
		if passed < time.Minute {
			if err != nil || rows != 1 {
				t.Errorf("in the last moment of the lease: %v, %d rows", err, rows)
			}
		} else if !errors.Is(err, dibs.ErrLost) || rows != 0 {
			t.Errorf("at the end of the lease: %v, %d rows", err, rows)
		}
	}
}

// commitAfter books under a lease of a minute and commits when so much of it has
// passed.
func commitAfter(t *testing.T, passed time.Duration, change func(*transactor)) (rows int, err error) {
	c := newTestClock("a", time.Hour)
	path := testFile(t)
	timed := openTest(t, path, &Options{PruneEvery: -1}, c.clock())
	db, err := timed.OpenDB()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE ledger (k TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	l := &ledger{t: t, s: timed, db: db, tr: timed.Transactions(db).(*transactor)}
	if change != nil {
		change(l.tr)
	}
	claim := lock("k")
	tx, _ := l.begin(t.Context(), claim)
	c.pass(passed)
	err = tx.Commit(t.Context(), keep(claim))
	return l.rows("k"), err
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
	b := newTransactor(s, db)
	b.committed = func(dibs.Key, bool) {}
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

// The checks above fail when what they check is missing.
func TestMutants(t *testing.T) {
	blind := func(b *transactor) { b.note = strings.Replace(b.note, " AND state = 0 AND until > now.at", "", 1) }
	if rows, err := commitAfter(t, 2*time.Minute, blind); err != nil || rows != 1 {
		t.Errorf("a note that does not look at the lease: %v, %d rows; that goes unnoticed", err, rows)
	}

	// A reader that knows no notes sees a lease that ran out when it was settled.
	path := testFile(t)
	s := openTest(t, path, &Options{PruneEvery: -1}, hostClock)
	sqlite(t, path, "CREATE TRIGGER mutant AFTER UPDATE OF state ON lease WHEN new.state = 4 "+
		"BEGIN UPDATE lease SET state = 0 WHERE k = new.k AND token = new.token; END")
	claim := lock("k")
	noteOnly(t, s, claim, keep(claim))
	if a := claimOne(t, s, asked("k")); a.State != dibs.Granted || a.Attempt != 2 {
		t.Errorf("a note that is not followed before the lease runs out: %+v; that goes unnoticed", a)
	}
}
