package sqlitestore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// queued returns how many calls wait for the writing goroutine.
func (s *Store) queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// A caller does not leave while its slices are read, not even when that happens
// for the second time because the first transaction failed.
func TestLeavingWhileAppliedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := &Store{}, &call{claims: make([]store.Claim, 1), phase: applying}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		left := make(chan error, 1)
		go func() { left <- s.leave(ctx, c) }()
		for range 2 {
			synctest.Wait()
			if len(left) > 0 {
				t.Fatalf("it left meanwhile: %v", <-left)
			}
			s.setPhase([]*call{c}, applying)
		}
		synctest.Wait()
		s.setPhase([]*call{c}, committing)
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("it left with %v", err)
		}
	})
}

// Calls of all verbs that are there at the same time share one transaction, and
// so one fsync.
func TestGroupCommit(t *testing.T) {
	path := testFile(t)
	c := newTestClock("a", time.Hour)
	s := openTest(t, path, &Options{LockWait: time.Minute, PruneEvery: -1}, c.clock())
	const each = 64
	renewed, settled := make([]store.Claim, each), make([]store.Claim, each)
	for i := range each {
		renewed[i], settled[i] = lock("renew"+strconv.Itoa(i)), lock("settle"+strconv.Itoa(i))
	}
	for _, claims := range [][]store.Claim{renewed, settled} {
		testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, each)))
	}
	other := sqlite(t, path, "BEGIN IMMEDIATE")
	committed := s.tx.committed
	var calls sync.WaitGroup
	for i := range each {
		calls.Go(func() { mustGrant(t, s, lock("claim"+strconv.Itoa(i))) })
		calls.Go(func() { mustSettle(t, s, release(settled[i])) })
		calls.Go(func() {
			errs := make([]error, 1)
			err := s.Renew(t.Context(), []store.Renewal{{Key: renewed[i].Key, Token: renewed[i].Token, TTL: time.Minute}}, errs)
			if err != nil || errs[0] != nil {
				t.Errorf("renew: %v, %v", err, errs[0])
			}
		})
	}
	testkit.Eventually(t, "all calls are in the queue", func() bool { return s.queued() == 3*each })
	testkit.Must(t, other.Exec("ROLLBACK"))
	calls.Wait()
	if n := s.tx.committed - committed; n != 1 {
		t.Errorf("%d calls took %d transactions", 3*each, n)
	}
}

// Renewals come before everything that is in the queue with them.
func TestRenewalsComeFirst(t *testing.T) {
	s := &Store{}
	for range 10 {
		s.queue = append(s.queue, &call{claims: make([]store.Claim, 10)})
	}
	s.queue = append(s.queue, &call{renewals: make([]store.Renewal, 100)}, &call{settlements: make([]store.Settlement, 1)})
	calls := s.take()
	if len(calls) != 12 || len(calls[0].renewals) != 100 || len(calls[11].settlements) != 1 {
		t.Errorf("the calls are not in order: %d of them, %d renewals first", len(calls), len(calls[0].renewals))
	}
}

// One transaction is bounded, and a call larger than the bound has one of its
// own.
func TestTransactionsAreBounded(t *testing.T) {
	s := &Store{}
	large := make([]byte, maxBytes+1)
	s.queue = []*call{
		{claims: make([]store.Claim, maxElements/2)},
		{claims: make([]store.Claim, maxElements/2)},
		{claims: make([]store.Claim, 1)},
		{settlements: []store.Settlement{{Data: large}}},
		{settlements: []store.Settlement{{Data: large}}},
		{claims: make([]store.Claim, maxElements+1)},
	}
	var sizes []int
	for len(s.queue) > 0 {
		sizes = append(sizes, len(s.take()))
	}
	want := []int{2, 1, 1, 1, 1}
	if len(sizes) != len(want) || sizes[0] != 2 {
		t.Errorf("the transactions have %v calls, not %v", sizes, want)
	}
}

// A caller whose context ends before its call has begun leaves nothing behind.
func TestLeaveTheQueue(t *testing.T) {
	path := testFile(t)
	s := openTest(t, path, &Options{LockWait: time.Minute}, hostClock)
	other := sqlite(t, path, "BEGIN IMMEDIATE")
	ctx, cancel := context.WithCancel(t.Context())
	claim := lock("k")
	result := make(chan error)
	go func() { result <- s.Claim(ctx, []store.Claim{claim}, make([]store.Answer, 1)) }()
	testkit.Eventually(t, "the call is in the queue", func() bool { return s.queued() == 1 })
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("the call was answered %v", err)
	}
	if n := s.queued(); n != 0 {
		t.Errorf("%d calls are in the queue", n)
	}
	testkit.Must(t, other.Exec("ROLLBACK"))
	if err := settleOne(t, s, release(claim)); !errors.Is(err, store.ErrLost) {
		t.Errorf("the lease of a call that had not begun was settled: %v", err)
	}
}

// Contexts that end at any moment neither wedge the store nor race with it, and
// what was left in the dark can be settled.
func TestLeaveAtAnyMoment(t *testing.T) {
	s := openTest(t, testFile(t), nil, hostClock)
	var calls sync.WaitGroup
	for i := range 16 {
		calls.Go(func() {
			for j := range 50 {
				c := lock(strconv.Itoa(i))
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				claims, answers := []store.Claim{c}, make([]store.Answer, 1)
				err := s.Claim(ctx, claims, answers)
				claims[0], answers[0] = store.Claim{}, store.Answer{} // the store keeps no slice
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("claim %d: %v", j, err)
				}
				if err := settleOne(t, s, release(c)); err != nil && !errors.Is(err, store.ErrLost) {
					t.Errorf("settle %d: %v", j, err)
				}
			}
		})
	}
	calls.Wait()
	for e, err := range s.List(t.Context(), store.Query{}) {
		t.Errorf("left behind: %+v, %v", e, err)
	}
}

func TestCloseWhileLocked(t *testing.T) {
	path := testFile(t)
	s := openTest(t, path, &Options{LockWait: time.Minute}, hostClock)
	other := sqlite(t, path, "BEGIN IMMEDIATE")
	result := make(chan error)
	go func() { result <- s.Claim(t.Context(), []store.Claim{lock("k")}, make([]store.Answer, 1)) }()
	testkit.Eventually(t, "the call is in the queue", func() bool { return s.queued() == 1 })
	if err := other.Exec("SELECT 1"); err != nil { // still there
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("the call was answered %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	testkit.Must(t, other.Exec("ROLLBACK"))
}

// When the disk is full calls fail with nothing done, each on its own account,
// and afterwards the store works again.
func TestDiskFull(t *testing.T) {
	path := testFile(t)
	s := openTest(t, path, &Options{LockWait: time.Minute, PruneEvery: -1}, hostClock)
	large, small := lock("large"), lock("small")
	mustGrant(t, s, large)
	mustGrant(t, s, small)
	limit(t, s, 100)

	keep := release(large)
	keep.Outcome, keep.Data, keep.Retention = store.Keep, make([]byte, 1<<20), time.Hour
	other := sqlite(t, path, "BEGIN IMMEDIATE")
	var calls sync.WaitGroup
	calls.Go(func() {
		err := s.Settle(t.Context(), []store.Settlement{keep}, make([]error, 1))
		if !errors.Is(err, ErrDiskFull) {
			t.Errorf("the large record was answered %v", err)
		}
	})
	calls.Go(func() { mustSettle(t, s, release(small)) })
	calls.Go(func() { mustGrant(t, s, lock("new")) })
	testkit.Eventually(t, "all calls are in the queue", func() bool { return s.queued() == 3 })
	testkit.Must(t, other.Exec("ROLLBACK"))
	calls.Wait()

	ask := lock("large")
	ask.MaxAge = store.AnyAge
	wantState(t, "the key of the record that did not fit", claimOne(t, s, ask), store.Held)
	limit(t, s, 1<<20)
	mustSettle(t, s, keep)
	wantState(t, "after there was room", claimOne(t, s, ask), store.Done)
}

// limit lets the file have that many pages at most.
func limit(t *testing.T, s *Store, pages int) {
	t.Helper()
	err := s.work(t.Context(), func(tx *transaction) {
		tx.err = s.conn.Exec("PRAGMA max_page_count = " + strconv.Itoa(pages))
	})
	testkit.Must(t, err)
}

// Records that end in the same microsecond are as many as there are.
func TestRecordsOfOneMicrosecond(t *testing.T) {
	c := newTestClock("a", time.Hour)
	s := openTest(t, testFile(t), &Options{PruneEvery: -1}, c.clock())
	const n = 3000
	claims, settlements := make([]store.Claim, n), make([]store.Settlement, n)
	for i := range n {
		claims[i] = lock(strconv.Itoa(i))
		settlements[i] = release(claims[i])
		settlements[i].Outcome, settlements[i].Retention = store.Keep, time.Second
		settlements[i].Data = []byte(claims[i].Key.Name)
	}
	testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, n)))
	errs := make([]error, n)
	if err := s.Settle(t.Context(), settlements, errs); err != nil || errors.Join(errs...) != nil {
		t.Fatal(err, errors.Join(errs...))
	}
	for i := range n {
		claims[i].Token, claims[i].MaxAge = store.NewToken(), store.AnyAge
	}
	answers := make([]store.Answer, n)
	testkit.Must(t, s.Claim(t.Context(), claims, answers))
	for i, a := range answers {
		if a.State != store.Done || string(a.Record.Data) != claims[i].Key.Name || a.Record.Left > time.Second+n*time.Microsecond {
			t.Fatalf("record %d is answered %+v", i, a)
		}
	}
}

// TestWriteQueueIsClosedWhileItAsks closes a writeQueue that stands in the kernel's
// queue, as a Store does that waited for too long.
func TestWriteQueueIsClosedWhileItAsks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dibs.db")
	info, err := os.Stat(t.TempDir())
	testkit.Must(t, err)
	yes, no := func() bool { return true }, func() bool { return false }
	var holder, asker, next writeQueue
	for _, turn := range []*writeQueue{&holder, &asker, &next} {
		if turn.open(path, info); turn.unusable != nil {
			t.Fatal(turn.unusable)
		}
	}
	if !holder.enter(stalled, yes, no) {
		t.Fatal("the queue is empty, but the first one must wait")
	}
	if hasFileLocks && asker.enter(stalled, yes, no) {
		t.Fatal("two are inside")
	}
	testkit.Must(t, asker.close())
	testkit.Must(t, holder.close())
	// What asked in vain leaves the lock to others.
	deadline := time.Now().Add(testkit.Limit)
	if !next.enter(stalled, func() bool { return time.Now().After(deadline) }, no) {
		t.Error("the next one never gets in")
	}
	testkit.Check(t, next.close())
}

// TestWriteQueueAsksTheKernelOnce: a Store that gives up again and again has one goroutine in the
// kernel's queue, because each takes a thread, for as long as the program with the turn hangs.
func TestWriteQueueAsksTheKernelOnce(t *testing.T) {
	if !hasFileLocks {
		t.Skip("there are no such locks")
	}
	path := filepath.Join(t.TempDir(), "dibs.db")
	info, err := os.Stat(t.TempDir())
	testkit.Must(t, err)
	yes, no := func() bool { return true }, func() bool { return false }
	var holder, asker writeQueue
	for _, turn := range []*writeQueue{&holder, &asker} {
		if turn.open(path, info); turn.unusable != nil {
			t.Fatal(turn.unusable)
		}
		defer turn.close()
	}
	if !holder.enter(stalled, yes, no) {
		t.Fatal("the queue is empty, but the first one must wait")
	}
	before := runtime.NumGoroutine()
	for range 10 {
		if asker.enter(stalled, yes, no) {
			t.Fatal("two are inside")
		}
	}
	if more := runtime.NumGoroutine() - before; more > 1 {
		t.Errorf("%d goroutines stand in the kernel's queue", more)
	}
	holder.leave()
	deadline := time.Now().Add(testkit.Limit)
	if !asker.enter(stalled, func() bool { return time.Now().After(deadline) }, no) {
		t.Error("it never gets in")
	}
	// It is inside, unless the goroutine that asked before has just given the turn back.
	asker.leave()
	if !holder.enter(stalled, func() bool { return time.Now().After(deadline) }, no) {
		t.Error("the other one never gets in again")
	}
}
