package sqlitestore

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/storetest"
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

func claimOne(t testing.TB, s *Store, c store.Claim) store.Answer {
	answers := [1]store.Answer{}
	if err := s.Claim(t.Context(), []store.Claim{c}, answers[:]); err != nil {
		t.Errorf("claim: %v", err)
	}
	return answers[0]
}

func mustGrant(t testing.TB, s *Store, c store.Claim) store.Answer {
	a := claimOne(t, s, c)
	if a.State != store.Granted {
		t.Errorf("the claim was answered %+v", a)
	}
	return a
}

func settleOne(t testing.TB, s *Store, x store.Settlement) error {
	errs := [1]error{}
	if err := s.Settle(t.Context(), []store.Settlement{x}, errs[:]); err != nil {
		t.Errorf("settle: %v", err)
	}
	return errs[0]
}

func mustSettle(t testing.TB, s *Store, x store.Settlement) {
	if err := settleOne(t, s, x); err != nil {
		t.Errorf("settle: %v", err)
	}
}

// woken collects the tokens that a store wakes.
func woken(t testing.TB, s *Store) <-chan store.Token {
	tokens := make(chan store.Token, 100)
	t.Cleanup(s.Notify(func(token store.Token, _ store.Answer) { tokens <- token }))
	return tokens
}

// The file is not read without waiters.
func TestNobodyWaits(t *testing.T) {
	s := openTest(t, testFile(t), nil, hostClock)
	woken(t, s)
	holder := lock("k")
	mustGrant(t, s, holder)
	granted, left, lapsed := lock("k"), lock("k"), lock("k")
	lapsed.PlaceTTL = 20 * time.Millisecond
	for _, c := range []*store.Claim{&granted, &left, &lapsed} {
		c.Mode = store.Queue
		wantState(t, "a waiter", claimOne(t, s, *c), store.Held)
	}
	mustSettle(t, s, release(holder))
	mustGrant(t, s, granted)
	mustSettle(t, s, release(left))
	w := &s.waiting
	testkit.Eventually(t, "the set of waiting tokens is empty", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.tokens) == 0
	})
	looks := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.looks
	}
	// At most the look that is under way comes after that, and one that finds no waiter.
	before := looks()
	for range 20 {
		mustGrant(t, s, lock("time passes"+store.NewToken().ID()))
	}
	if n := looks() - before; n > 2 {
		t.Errorf("the file was read %d times without waiters", n)
	}
}

func TestConformance(t *testing.T) {
	conform(t, Options{}, func(_ testing.TB, s *Store) store.Store { return s })
}

// conform checks all properties on files of their own, with the stores as something
// else.
func conform(t *testing.T, o Options, as func(testing.TB, *Store) store.Store) {
	t.Parallel() // it mostly waits
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB, _ time.Duration) *storetest.Subject {
			o := o
			o.PruneEvery = -1 // pruning would use the connection during the set-up below
			file := filepath.Join(t.TempDir(), "dibs.db")
			var opened []*Store
			openWith := func(c clock) store.Store {
				s, err := open(file, &o, c)
				if err != nil {
					t.Fatalf("open: %v", err)
				}
				if err := s.conn.Exec("PRAGMA synchronous = OFF"); err != nil { // no machine fails here
					t.Fatal(err)
				}
				opened = append(opened, s)
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				})
				return as(t, s)
			}
			closeAll := func() {
				for _, s := range opened {
					if err := s.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				}
				opened = nil
			}
			return &storetest.Subject{
				Open: func() store.Store { return openWith(hostClock) },
				OpenSkewed: func(d time.Duration) store.Store {
					c := hostClock
					c.wall = func() int64 { return time.Now().Add(d).UnixMicro() }
					return openWith(c)
				},
				Restart: closeAll,
				Wipe: func() {
					closeAll()
					for _, suffix := range []string{"", "-wal", "-shm"} {
						if err := os.Remove(file + suffix); err != nil && !os.IsNotExist(err) {
							t.Fatal(err)
						}
					}
				},
			}
		},
	})
}
