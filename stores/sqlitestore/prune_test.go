package sqlitestore

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// Pruning removes what has ended and nothing else, at most as many as asked, and
// the file shrinks.
func TestPrune(t *testing.T) {
	t.Parallel() // it mostly waits for the disk
	c := newTestClock("a", time.Hour)
	path := testFile(t)
	s := openTest(t, path, &Options{PruneEvery: -1}, c.clock())
	const n = 300
	var claims []store.Claim
	var settlements []store.Settlement
	for i := range n {
		for name, retention := range map[string]time.Duration{"ended": time.Minute, "kept": time.Hour} {
			c := lock(name + strconv.Itoa(i))
			x := keep(c)
			x.Data, x.Retention = make([]byte, 20_000), retention
			claims, settlements = append(claims, c), append(settlements, x)
		}
		lapsed := lock("lapsed" + strconv.Itoa(i))
		lapsed.Mode, lapsed.PlaceTTL = store.Reserve, time.Minute
		claims = append(claims, lapsed)
	}
	testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, len(claims))))
	errs := make([]error, len(settlements))
	if err := s.Settle(t.Context(), settlements, errs); err != nil || errors.Join(errs...) != nil {
		t.Fatal(err, errors.Join(errs...))
	}
	checkpoint(t, s)
	before := size(t, path)
	if n, err := s.Prune(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("with nothing ended: %d removed, %v", n, err)
	}
	c.pass(time.Minute + time.Second) // records of one microsecond end one by one
	if removed, err := s.Prune(t.Context(), 100); removed != 100 || err != nil {
		t.Errorf("up to 100: %d removed, %v", removed, err)
	}
	if removed, err := s.Prune(t.Context(), 0); removed != 2*n-100 || err != nil {
		t.Errorf("all: %d removed, %v", removed, err)
	}
	checkpoint(t, s)
	if after := size(t, path); after > before*3/4 {
		t.Errorf("the file has %d bytes, before it had %d", after, before)
	}
	for i := range n {
		for name, want := range map[string]store.State{"kept": store.Done, "ended": store.Free} {
			ask := lock(name + strconv.Itoa(i))
			ask.Mode, ask.MaxAge = store.Look, store.AnyAge
			wantState(t, ask.Key.Name, claimOne(t, s, ask), want)
		}
	}
}

// The background removes what has ended without being asked.
func TestPruneInTheBackground(t *testing.T) {
	s := openTest(t, testFile(t), &Options{PruneEvery: 5 * time.Millisecond}, hostClock)
	for i := range 200 {
		c := lock(strconv.Itoa(i))
		mustGrant(t, s, c)
		mustSettle(t, s, store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Keep, Retention: time.Millisecond})
	}
	testkit.Eventually(t, "the records are gone", func() bool { return rows(t, s, "record") == 0 })
}

// Wake-ups for other processes do not pile up.
func TestWakesAreForgotten(t *testing.T) {
	path := testFile(t)
	waits := openTest(t, path, nil, hostClock)
	grants := openTest(t, path, &Options{PruneEvery: 5 * time.Millisecond}, hostClock)
	for i := range 50 {
		holder, waiter := lock(strconv.Itoa(i)), lock(strconv.Itoa(i))
		waiter.Mode = store.Queue
		mustGrant(t, grants, holder)
		wantState(t, "the waiter", claimOne(t, waits, waiter), store.Held)
		mustSettle(t, grants, release(holder))
		mustGrant(t, waits, waiter)
	}
	testkit.Eventually(t, "all wakes but the last are gone", func() bool { return rows(t, grants, "wake") == 1 })
}

func rows(t testing.TB, s *Store, table string) (n int64) {
	t.Helper()
	err := s.work(t.Context(), func(tx *transaction) {
		n, tx.err = s.conn.Query("SELECT count(*) FROM " + table)
	})
	testkit.Must(t, err)
	return n
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	testkit.Must(t, err)
	return info.Size()
}

// checkpoint moves everything into the main file.
func checkpoint(t *testing.T, s *Store) {
	t.Helper()
	conn := sqlite(t, s.names.full, "PRAGMA wal_checkpoint(TRUNCATE)")
	testkit.Must(t, conn.Close())
}
