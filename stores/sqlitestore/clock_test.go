package sqlitestore

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// After a reboot the host's clock starts at 0. Leases and records go on from
// where they were last seen.
func TestReboot(t *testing.T) {
	path := testFile(t)
	before := newTestClock("first boot", 100*time.Hour)
	s := openTest(t, path, nil, before.clock())
	held, done := lock("held"), lock("done")
	held.TTL = 10 * time.Second
	mustGrant(t, s, done)
	mustSettle(t, s, store.Settlement{
		Key: done.Key, Token: done.Token, Outcome: store.Keep, Data: []byte("answer"), Retention: time.Hour,
	})
	mustGrant(t, s, held)
	before.pass(4 * time.Second)
	mustGrant(t, s, lock("seen 4 s later"))
	testkit.Must(t, s.Close())

	after := newTestClock("second boot", 5*time.Second)
	s = openTest(t, path, nil, after.clock())
	other := lock("held")
	a := claimOne(t, s, other)
	wantState(t, "the lease after the reboot", a, store.Held)
	if a.Left != 6*time.Second {
		t.Errorf("the lease has %v left after the reboot, not 6 s", a.Left)
	}
	after.pass(6 * time.Second)
	if a := mustGrant(t, s, other); a.Attempt != 2 {
		t.Errorf("after the lease's end the attempt is %d", a.Attempt)
	}
	done.Token, done.MaxAge = store.NewToken(), store.AnyAge
	a = claimOne(t, s, done)
	wantState(t, "the record after the reboot", a, store.Done)
	if a.Record.Age != 10*time.Second || a.Record.Left != time.Hour-10*time.Second {
		t.Errorf("the record is %v old and has %v left", a.Record.Age, a.Record.Left)
	}
	after.pass(time.Hour)
	mustGrant(t, s, done)
}

// A wall clock that steps changes nothing but fences, and these never fall.
func TestWallClockSteps(t *testing.T) {
	c := newTestClock("a", time.Hour)
	s := openTest(t, testFile(t), nil, c.clock())
	held := lock("held")
	held.TTL = 10 * time.Second
	last := mustGrant(t, s, held).Fence
	for _, step := range []time.Duration{-time.Hour, 2 * time.Hour, -48 * time.Hour} {
		c.wall.Add(int64(step / time.Microsecond))
		wantState(t, "the lease after the wall clock stepped", claimOne(t, s, lock("held")), store.Held)
		fence := mustGrant(t, s, lock("other"+step.String())).Fence
		if fence <= last {
			t.Errorf("after a step of %v the fence is %d; it was %d", step, fence, last)
		}
		last = fence
	}
	c.pass(10 * time.Second)
	if a := mustGrant(t, s, lock("held")); a.Fence <= last {
		t.Errorf("the fence fell from %d to %d", last, a.Fence)
	}
}

func TestOtherHost(t *testing.T) {
	path := testFile(t)
	here := openTest(t, path, nil, newTestClock("here", time.Hour).clock())
	mustGrant(t, here, lock("a"))
	there := openTest(t, path, nil, newTestClock("there", time.Minute).clock())
	mustGrant(t, there, lock("b"))
	err := here.Claim(t.Context(), []store.Claim{lock("c")}, make([]store.Answer, 1))
	if !errors.Is(err, ErrOtherHost) {
		t.Errorf("a claim after another host opened the file: %v", err)
	}
	mustGrant(t, there, lock("c"))
}

// The uptime of one virtual machine can fall when it is moved. Store time does
// not.
func TestUptimeFalls(t *testing.T) {
	c := newTestClock("a", time.Hour)
	s := openTest(t, testFile(t), nil, c.clock())
	held := lock("held")
	held.TTL = 10 * time.Second
	mustGrant(t, s, held)
	c.pass(-time.Minute)
	a := claimOne(t, s, lock("held"))
	wantState(t, "the lease", a, store.Held)
	if a.Left != 10*time.Second {
		t.Errorf("the lease has %v left, not 10 s", a.Left)
	}
}

func TestAbandonmentIsRememberedForADay(t *testing.T) {
	for _, test := range []struct {
		name    string
		passed  time.Duration
		attempt int
	}{
		{"just before", store.AbandonedRetention - time.Second, 2},
		{"just after", store.AbandonedRetention + time.Second, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newTestClock("a", time.Hour)
			s := openTest(t, testFile(t), &Options{PruneEvery: -1}, c.clock())
			claim := lock("k")
			claim.TTL = time.Second
			mustGrant(t, s, claim)
			c.pass(time.Second + test.passed)
			if _, err := s.Prune(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if a := mustGrant(t, s, lock("k")); a.Attempt != test.attempt {
				t.Errorf("the attempt is %d, not %d", a.Attempt, test.attempt)
			}
		})
	}
}

func TestUnknownIsForEver(t *testing.T) {
	c := newTestClock("a", time.Hour)
	s := openTest(t, testFile(t), &Options{PruneEvery: -1}, c.clock())
	claim := lock("k")
	claim.AtMostOnce = true
	mustGrant(t, s, claim)
	for range 2 {
		c.pass(10 * 365 * 24 * time.Hour)
		if _, err := s.Prune(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		a := claimOne(t, s, lock("k"))
		wantState(t, "ten years later", a, store.Unknown)
		if a.ID != claim.Token.ID() {
			t.Errorf("the unknown attempt is %q, not %q", a.ID, claim.Token.ID())
		}
	}
	if ok, err := s.Resolve(t.Context(), claim.Key, claim.Token.ID(), []byte("paid"), time.Hour); err != nil || !ok {
		t.Fatal(ok, err)
	}
	ask := lock("k")
	ask.MaxAge = store.AnyAge
	wantState(t, "after it was resolved", claimOne(t, s, ask), store.Done)
}

// A store that is a hundred years old can still write the longest record.
func TestLongestRecord(t *testing.T) {
	serial := int64(0)
	r := engine.Record{Written: longest, Ends: longest + engine.Micros(store.AnyAge)}
	if err := withID(&r, &serial, func(id int64) error {
		if id < 0 || id>>recordShift != 2*longest {
			t.Errorf("the record's id is %d, which overflows", id)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// The host's own clock: it continues, and all processes share its boot.
func TestHostClock(t *testing.T) {
	boot, err := hostClock.boot()
	if err != nil || boot == "" {
		t.Fatalf("boot: %q, %v", boot, err)
	}
	if again, _ := hostClock.boot(); again != boot {
		t.Errorf("the boot is %q, then %q", boot, again)
	}
	start := hostClock.monotonic()
	testkit.Eventually(t, "the clock continues", func() bool { return hostClock.monotonic() > start })
}

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
