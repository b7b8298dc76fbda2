package pgstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestIndexStays: taking and releasing a key again and again leaves its index as it
// is, and neither that nor a replay makes the table grow.
func TestIndexStays(t *testing.T) {
	t.Parallel()
	url := ownDatabase(shared()) // without others' transactions
	s := open(t, url, &Options{PruneEvery: -1})
	db := openDB(t, url)
	// What a vacuum does meanwhile would be a matter of luck.
	if _, err := db.ExecContext(t.Context(), s.names.sql("ALTER TABLE @key SET (autovacuum_enabled = off)")); err != nil {
		t.Fatal(err)
	}
	const rounds = 200
	for range rounds {
		sqltest.Cycle(t, s, store.Key{Name: "k"})
	}
	if err := s.Close(); err != nil { // the server counts what a connection did when it ends
		t.Fatal(err)
	}
	count := func(what string) (n int) {
		t.Helper()
		testkit.Must(t, db.QueryRowContext(t.Context(), s.names.sql("SELECT "+what+" FROM pg_stat_user_tables WHERE relid = '@key'::regclass")).Scan(&n))
		return n
	}
	testkit.Eventually(t, "the server's own count", func() bool { return count("n_tup_upd") >= 2*rounds-1 })
	if all, hot := count("n_tup_upd"), count("n_tup_hot_upd"); hot < all*98/100 {
		t.Errorf("of %d updates %d left the index as it was", all, hot)
	}
	// Each version on a place of its own would be some 13 pages.
	if pages := count("pg_relation_size(relid) / 8192"); pages >= 10 {
		t.Errorf("one key has %d pages", pages)
	}
}

// TestSweepLeavesTheBusyAlone: a sweep does not lock a key that has a holder and waiters, and
// nothing that has expired.
func TestSweepLeavesTheBusyAlone(t *testing.T) {
	t.Parallel()
	o := ownNames()
	o.PruneEvery = -1
	s := open(t, shared().URL(), o)
	c := sqltest.Client(t, s, nil)
	lease, err := c.Acquire(t.Context(), "k", nil)
	testkit.Must(t, err)
	if _, _, err := c.Reserve(t.Context(), "k", time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	lockedBy := func() (xid string) {
		t.Helper()
		testkit.Must(t, s.front.QueryRow(t.Context(), s.names.sql("SELECT xmax::text FROM @key")).Scan(&xid))
		return xid
	}
	for _, ended := range []bool{false, true} {
		if ended {
			shared().Query(s.names.sql("UPDATE @waiter SET ends = asked + 1"))
		}
		before := lockedBy()
		n, err := s.Prune(t.Context(), 0)
		testkit.Must(t, err)
		if (n == 1) != ended || lockedBy() != before {
			t.Errorf("a place that has ended: %v; %d removed, the key's row was locked by %s and then by %s", ended, n, before, lockedBy())
		}
	}
	testkit.Check(t, lease.Release())
}
