package sqlitestore

import (
	"cmp"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// testClock is a clock that stops until the test moves it.
type testClock struct {
	bootID string
	uptime atomic.Int64
	wall   atomic.Int64
}

func newTestClock(boot string, uptime time.Duration) *testClock {
	c := &testClock{bootID: boot}
	c.uptime.Store(engine.Micros(uptime))
	c.wall.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
	return c
}

func (c *testClock) clock() clock {
	return clock{
		boot:      func() (string, error) { return c.bootID, nil },
		monotonic: c.uptime.Load,
		wall:      c.wall.Load,
	}
}

func (c *testClock) pass(d time.Duration) { c.uptime.Add(int64(d / time.Microsecond)) }

// openTest opens a store that is closed with the test. Its file is sound then. Where
// the options do not say how long it waits for the file, no machine is too slow for it.
func openTest(t testing.TB, path string, o *Options, c clock) *Store {
	t.Helper()
	var opt Options
	if o != nil {
		opt = *o
	}
	opt.LockWait = cmp.Or(opt.LockWait, testkit.Limit)
	s, err := open(path, &opt, c)
	testkit.Must(t, err)
	t.Cleanup(func() {
		testkit.Check(t, s.Close())
		checkSound(t, path)
	})
	return s
}

func checkSound(t testing.TB, path string) {
	t.Helper()
	conn, err := lite.Open(path, lite.ReadWrite)
	testkit.Must(t, err)
	defer conn.Close()
	if text, err := conn.QueryText("PRAGMA integrity_check"); err != nil || text != "ok" {
		t.Errorf("the file is not sound: %q, %v", text, err)
	}
}

func testFile(t testing.TB) string { return filepath.Join(t.TempDir(), "dibs.db") }

// lock is a claim for a lock.
func lock(name string) store.Claim {
	return store.Claim{
		Key: store.Key{Namespace: "test", Name: name}, Token: store.NewToken(), TTL: time.Minute, PlaceTTL: time.Minute, Permits: 1, Weight: 1,
	}
}

func release(c store.Claim) store.Settlement {
	return store.Settlement{Key: c.Key, Token: c.Token}
}

func wantState(t *testing.T, what string, a store.Answer, want store.State) {
	t.Helper()
	if a.Err != nil || a.State != want {
		a.Record.Data = nil // too long to print
		t.Fatalf("%s: the answer is %+v, not state %d", what, a, want)
	}
}

// isBlocked reports whether the store has found the file locked by others.
func (s *Store) isBlocked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocked
}

// within returns what f returns, and ends the test if f hangs.
func within[T any](t testing.TB, what string, f func() T) T {
	t.Helper()
	returned := make(chan T, 1)
	go func() { returned <- f() }()
	return testkit.Await(t, what, returned)
}

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		field string
		o     Options
	}{
		{"MaxRecord", Options{MaxRecord: -1}},
		{"MaxRecord", Options{MaxRecord: 1 << 30}},
		{"MaxWaiters", Options{MaxWaiters: -1}},
		{"LockWait", Options{LockWait: time.Microsecond}},
		{"LockWait", Options{LockWait: -time.Second}},
		{"PruneEvery", Options{PruneEvery: time.Microsecond}},
	} {
		path := testFile(t)
		_, err := Open(path, &test.o)
		if err == nil || !strings.Contains(err.Error(), "Options."+test.field) {
			t.Errorf("%+v: the error is %v; it should name %s", test.o, err, test.field)
		}
		if exists(path) {
			t.Errorf("%+v: a file was made", test.o)
		}
	}
}

func TestLimits(t *testing.T) {
	s := openTest(t, testFile(t), &Options{MaxRecord: 10, MaxWaiters: 3}, hostClock)
	holder := lock("k")
	mustGrant(t, s, holder)
	x := release(holder)
	x.Outcome, x.Data, x.Retention = store.Keep, make([]byte, 11), time.Hour
	if err := settleOne(t, s, x); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("a record of 11 bytes was answered %v", err)
	}
	waiters := make([]store.Claim, 3)
	for i := range waiters {
		waiters[i] = lock("k")
		waiters[i].Mode = store.Queue
		wantState(t, "waiter "+strconv.Itoa(i), claimOne(t, s, waiters[i]), store.Held)
	}
	more := lock("k")
	more.Mode = store.Queue
	if a := claimOne(t, s, more); !errors.Is(a.Err, store.ErrFull) {
		t.Errorf("a fourth waiter was answered %+v", a)
	}
	// One that leaves makes room for one, not for two.
	mustSettle(t, s, release(waiters[1]))
	wantState(t, "a waiter in the room that one left", claimOne(t, s, more), store.Held)
	if a := claimOne(t, s, func() store.Claim { c := lock("k"); c.Mode = store.Queue; return c }()); !errors.Is(a.Err, store.ErrFull) {
		t.Errorf("one more waiter was answered %+v", a)
	}
	x.Data = x.Data[:10]
	mustSettle(t, s, x)
}

// A queue of 10,000 is asked for, left and granted without being walked through.
func TestLongQueue(t *testing.T) {
	s := openTest(t, testFile(t), nil, hostClock)
	claims := make([]store.Claim, 10_001)
	for i := range claims {
		claims[i] = lock("k")
		claims[i].Mode = store.Queue
	}
	answers := make([]store.Answer, len(claims))
	testkit.Must(t, s.Claim(t.Context(), claims, answers))
	if a := answers[10_000]; a.State != store.Held || a.Ahead != 9_999 {
		t.Fatalf("the last one was answered %+v", a)
	}
	for i := range 100 {
		mustSettle(t, s, release(claims[i]))
		a := mustGrant(t, s, claims[i+1])
		if i > 0 && a.Fence <= answers[i].Fence {
			t.Fatalf("grant %d has fence %d after %d", i, a.Fence, answers[i].Fence)
		}
		answers[i+1] = a
	}
}
