package pgstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestFencesOutliveTheirKeys: the fences of a key rise also when the clock was set
// back, and all that was known of the key is gone.
func TestFencesOutliveTheirKeys(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), &Options{Schema: ownSchema(), PruneEvery: -1})
	k := dibs.Key{Name: "k"}
	last := cycle(t, s, k)
	for range 3 {
		// As if it had been given when the clock was an hour ahead.
		shared().Query(s.names.sql("UPDATE @key SET fence = fence + 3600::bigint * 1000000"))
		last += 3600 * 1e6
		if fence := cycle(t, s, k); fence <= last {
			t.Fatalf("the fence %d is not above %d", fence, last)
		} else {
			last = fence
		}
		if _, err := s.Prune(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if n := shared().Query(s.names.sql("SELECT count(*) FROM @key"))[0][0]; n != "0" {
			t.Fatalf("%s keys are left", n)
		}
		if fence := cycle(t, s, k); fence <= last {
			t.Fatalf("after it was forgotten, the fence %d is not above %d", fence, last)
		} else {
			last = fence
		}
	}
}

// cycle claims a key and settles it, and returns the fence.
func cycle(t *testing.T, s *Store, k dibs.Key) uint64 {
	t.Helper()
	c := dibs.Claim{Key: k, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1}
	answers, errs := make([]dibs.Answer, 1), make([]error, 1)
	if err := s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil || answers[0].State != dibs.Granted {
		t.Fatalf("%v, %+v", err, answers[0])
	}
	if err := s.Settle(t.Context(), []dibs.Settlement{{Key: k, Token: c.Token}}, errs); err != nil || errs[0] != nil {
		t.Fatal(err, errs[0])
	}
	return answers[0].Fence
}

// TestPrunesByItself: what has ended goes away in the background, record by record
// in the order in which they ended, and keys that nobody uses any more.
func TestPrunesByItself(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), &Options{Schema: ownSchema(), PruneEvery: 10 * time.Millisecond})
	const n = 1000
	claims, answers := make([]dibs.Claim, n), make([]dibs.Answer, n)
	settlements, errs := make([]dibs.Settlement, n), make([]error, n)
	for i := range claims {
		k, token := dibs.Key{Name: string(rune('a' + i))}, dibs.NewToken()
		claims[i] = dibs.Claim{Key: k, Token: token, TTL: time.Minute, Permits: 1}
		settlements[i] = dibs.Settlement{Key: k, Token: token, Outcome: dibs.Keep, Data: []byte("answer"), Retention: time.Millisecond}
		if i%2 == 0 {
			settlements[i].Outcome = dibs.Release
		}
	}
	if err := s.Claim(t.Context(), claims, answers); err != nil {
		t.Fatal(err)
	}
	if err := s.Settle(t.Context(), settlements, errs); err != nil {
		t.Fatal(err)
	}
	rows := func(where string) string {
		return shared().Query(s.names.sql("SELECT count(*) FROM @key " + where))[0][0]
	}
	eventually(t, 20*time.Second, "the records are gone", func() bool { return rows("WHERE rec_ends IS NOT NULL") == "0" })
	shared().Query(s.names.sql("UPDATE @key SET since = since - interval '2 minutes'; UPDATE @meta SET swept = '-infinity'"))
	eventually(t, 20*time.Second, "the keys are gone", func() bool { return rows("") == "0" })
}

// TestIndexStays: taking and releasing a key again and again leaves its index as it
// is, and neither that nor a replay makes the table grow.
func TestIndexStays(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true}) // without others' transactions
	s := open(t, server.URL(), &Options{PruneEvery: -1})
	const rounds = 1500
	for range rounds {
		cycle(t, s, dibs.Key{Name: "k"})
	}
	count := func(column string) (n int) {
		t.Helper()
		row := server.Query(s.names.sql("SELECT " + column + " FROM pg_stat_user_tables WHERE relid = '@key'::regclass"))[0][0]
		if _, err := fmt.Sscan(row, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, 20*time.Second, "the server's own count", func() bool { return count("n_tup_upd") >= 2*rounds-1 })
	if all, hot := count("n_tup_upd"), count("n_tup_hot_upd"); hot < all*98/100 {
		t.Errorf("of %d updates %d left the index as it was", all, hot)
	}
	// Each version on a place of its own would be some 100 pages. How many there
	// are depends on what else the server had to look at meanwhile.
	if pages := server.Query(s.names.sql("SELECT pg_relation_size('@key') / 8192 < 60"))[0][0]; pages != "t" {
		t.Errorf("one key has 60 pages or more")
	}
}

// TestOneSweeps: while a process goes through all keys, however long that takes, no other
// one begins to.
func TestOneSweeps(t *testing.T) {
	t.Parallel()
	schema := ownSchema()
	s := open(t, shared().URL(), &Options{Schema: schema, PruneEvery: -1})
	other := open(t, shared().URL(), &Options{Schema: schema, PruneEvery: -1})
	if page, err := s.mayISweep(t.Context()); err != nil || page == nil {
		t.Fatalf("%v, %v; want that it is our turn", page, err)
	}
	later := s.names.sql("UPDATE @meta SET swept = swept - interval '2 minutes'")
	shared().Query(later)
	if err := s.stillSweeping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if page, err := other.mayISweep(t.Context()); err != nil || page != nil {
		t.Errorf("%v, %v; want that it is not the other one's turn yet", page, err)
	}
	shared().Query(later)
	if page, err := other.mayISweep(t.Context()); err != nil || page == nil {
		t.Errorf("%v, %v; want that it is the other one's turn", page, err)
	}
}

// TestSweepLeavesTheBusyAlone: a key that is held and waited for, and where nothing has
// ended, is not locked by who goes through all keys.
func TestSweepLeavesTheBusyAlone(t *testing.T) {
	t.Parallel()
	o := ownNames()
	o.PruneEvery = -1
	s := open(t, shared().URL(), o)
	c := newClient(t, s, nil)
	lease, err := c.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reserve(t.Context(), "k", time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	lockedBy := func() (xid string) {
		t.Helper()
		if err := s.front.QueryRow(t.Context(), s.names.sql("SELECT xmax::text FROM @key")).Scan(&xid); err != nil {
			t.Fatal(err)
		}
		return xid
	}
	for _, ended := range []bool{false, true} {
		if ended {
			shared().Query(s.names.sql("UPDATE @waiter SET ends = now() - interval '1 second'"))
		}
		before := lockedBy()
		n, err := s.Prune(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if (n == 1) != ended || (lockedBy() != before) != ended {
			t.Errorf("a place that has ended: %v; %d removed, the key's row was locked by %s and then by %s", ended, n, before, lockedBy())
		}
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
}
