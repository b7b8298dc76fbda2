package sqlitestore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// downgrades make a file of version i of one of version i+1.
var downgrades = [][]string{
	1: {
		"ALTER TABLE lease DROP COLUMN data", "ALTER TABLE lease DROP COLUMN retention", "ALTER TABLE lease DROP COLUMN outcome",
		"UPDATE meta SET version = 1, boot = CAST('a' AS BLOB)",
	},
	2: {
		"ALTER TABLE waiter DROP COLUMN hold", "ALTER TABLE waiter DROP COLUMN pressed", "UPDATE meta SET version = 2",
	},
}

// A file of an earlier version becomes one of this version, and nothing in it is lost.
func TestUpgrade(t *testing.T) {
	for version := 1; version < schemaVersion; version++ {
		path := testFile(t)
		c := newTestClock("a", time.Hour)
		s, err := open(path, nil, c.clock())
		if err != nil {
			t.Fatal(err)
		}
		held, done, place := lock("held"), lock("done"), reservation("reserved", 0)
		mustGrant(t, s, held)
		mustGrant(t, s, done)
		mustSettle(t, s, keep(done))
		wantState(t, "a place", claimOne(t, s, place), dibs.Held)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for v := schemaVersion - 1; v >= version; v-- {
			if err := sqlite(t, path, downgrades[v]...).Close(); err != nil {
				t.Fatal(err)
			}
		}
		c.pass(10 * time.Second)
		for range 2 {
			s = openTest(t, path, nil, c.clock())
		}
		a := claimOne(t, s, lock("held"))
		wantState(t, "a lease", a, dibs.Held)
		if a.Left != 50*time.Second {
			t.Errorf("version %d: the lease has %v left, not 50 s", version, a.Left)
		}
		wantState(t, "a record", claimOne(t, s, asked("done")), dibs.Done)
		note(t, s, keep(held))
		wantState(t, "what was settled in a transaction", claimOne(t, s, asked("held")), dibs.Done)
		a = claimOne(t, s, lock("reserved"))
		wantState(t, "a place", a, dibs.Held)
		if a.Left != 50*time.Second {
			t.Errorf("version %d: the place has %v left, not 50 s", version, a.Left)
		}
		place.Hold = time.Second
		wantState(t, "the place, prolonged", claimOne(t, s, place), dibs.Held)
		if a := claimOne(t, s, lock("reserved")); a.Left != time.Second {
			t.Errorf("version %d: the place is in the way for %v, not 1 s", version, a.Left)
		}
		conn := sqlite(t, path)
		if v, err := conn.Query("SELECT version FROM meta"); err != nil || v != schemaVersion {
			t.Errorf("version %d has become %d, %v", version, v, err)
		}
		// So that programs that know version 1 only, and have it open, stop.
		if boot, err := conn.QueryText("SELECT boot FROM meta"); err != nil || boot != "a"+bootSuffix {
			t.Errorf("version %d: the file is tied to %q, %v", version, boot, err)
		}
	}
}

// What a program that knows version 2 writes into a file that is upgraded while it has
// it open means the same there.
func TestBesideVersion2(t *testing.T) {
	path := testFile(t)
	s := openTest(t, path, nil, hostClock)
	c := reservation("k", 0)
	wantState(t, "a place", claimOne(t, s, c), dibs.Held)
	conn := sqlite(t, path)
	for _, sql := range []string{
		"CREATE TEMP TABLE kept AS SELECT * FROM waiter",
		"DELETE FROM waiter",
		`INSERT INTO waiter (k, seq, token, until, dormant, permits, once, max_age, fingerprint, owner, lasts)
			SELECT k, seq, token, until, dormant, permits, once, max_age, fingerprint, owner, lasts FROM kept`,
	} {
		if err := conn.Exec(sql); err != nil {
			t.Fatal(err)
		}
	}
	a := claimOne(t, s, lock("k"))
	wantState(t, "a stranger", a, dibs.Held)
	if a.Left <= 50*time.Second {
		t.Errorf("the place is in the way for %v, not a minute", a.Left)
	}
	mustGrant(t, s, dibs.Claim{Key: c.Key, Token: c.Token, TTL: time.Minute, Permits: 1})
}
