package sqlitestore

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// inFront is the one whose turn it is to write to the file, until it leaves.
func inFront(t *testing.T, path string) *turnstile {
	t.Helper()
	front, err := newTurnstile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = front.close() })
	comeAgain(t, front)
	return front
}

func comeAgain(t *testing.T, front *turnstile) {
	t.Helper()
	within(t, "its turn", func() bool { return front.enter(func() bool { return false }) })
}

// giveUp makes a call that has to wait for its turn, and ends it once meanwhile reports
// true.
func giveUp(t *testing.T, s *Store, meanwhile func() bool, call func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	given := make(chan error, 1)
	go func() { given <- call(ctx) }()
	eventually(t, "it waits for its turn", func() bool { return s.isBlocked() && meanwhile() })
	cancel()
	err := within(t, "giving up", func() error { return <-given })
	eventually(t, "nothing waits", func() bool { return !s.isBlocked() })
	return err
}

// TestCrowd: the store tells a call that did not come to write whether the file is kept
// locked, or others write all the time. Then the call can be made again.
func TestCrowd(t *testing.T) {
	path := testFile(t)
	s := openTest(t, path, &Options{LockWait: time.Hour, PruneEvery: -1}, hostClock)
	hasty := openTest(t, path, &Options{LockWait: 50 * time.Millisecond, PruneEvery: -1}, hostClock)
	others := sqlite(t, path)
	front := inFront(t, path)
	answers := make([]dibs.Answer, 1)
	claim := func(s *Store) func(context.Context) error {
		return func(ctx context.Context) error { return s.Claim(ctx, []dibs.Claim{lock("k")}, answers) }
	}
	noMore := func() bool { return true }

	// Nobody writes.
	if err := claim(hasty)(t.Context()); !errors.Is(err, ErrLocked) {
		t.Errorf("a claim for as long as LockWait: %+v, %v", answers[0], err)
	}
	if _, err := openFile(path, hasty.opt, hostClock); !errors.Is(err, ErrLocked) {
		t.Errorf("opening the file: %v", err)
	}
	if err := giveUp(t, s, noMore, claim(s)); !errors.Is(err, ErrLocked) {
		t.Errorf("a claim that is given up: %+v, %v", answers[0], err)
	}

	// The store itself writes.
	front.leave()
	mustGrant(t, s, lock("own"))
	comeAgain(t, front)
	if err := giveUp(t, s, noMore, claim(s)); !errors.Is(err, ErrLocked) || s.crowd.moved.Load() != nil {
		t.Errorf("a claim after the store has written: %+v, %v, moved %v", answers[0], err, s.crowd.moved.Load())
	}

	// Others write.
	otherWrite := func() bool {
		if err := others.Exec("UPDATE meta SET one = one"); err != nil {
			t.Error(err)
		}
		return s.crowd.moved.Load() != nil
	}
	if err := giveUp(t, s, otherWrite, claim(s)); err != nil || !errors.Is(answers[0].Err, dibs.ErrBusy) || !errors.Is(answers[0].Err, ErrLocked) {
		t.Errorf("a claim in a crowd: %+v, %v", answers[0], err)
	}
	if err := giveUp(t, s, otherWrite, func(ctx context.Context) error {
		return s.Settle(ctx, []dibs.Settlement{release(lock("k"))}, make([]error, 1))
	}); !errors.Is(err, ErrLocked) {
		t.Errorf("a settlement in a crowd: %v", err)
	}
	front.leave()
	mustGrant(t, s, lock("k"))
}

// grow has others write to a log that stands for the file's, again and again, for so
// long. What it returns puts an end to that.
func grow(t *testing.T, log string, every, until time.Duration) (stop func()) {
	ctx, cancel := context.WithTimeout(t.Context(), until)
	tick := time.NewTicker(every)
	var growing sync.WaitGroup
	growing.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			write(t, log, []byte(strings.Repeat("x", n)))
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		growing.Wait()
		tick.Stop()
	}
}

// TestLockWaitInACrowd: after LockWait a claim fails, or in a crowd may be made again.
// (Time is simulated; SQLite's lock is not.)
func TestLockWaitInACrowd(t *testing.T) {
	const lockWait = 4 * time.Second
	for _, test := range []struct {
		name string
		grow time.Duration // for how long others are seen to write
		busy bool
	}{
		{"nobody writes", 0, false},
		{"others have written", lockWait * 4 / 10, false},
		{"others write", lockWait * 7 / 10, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := testFile(t)
			synctest.Test(t, func(t *testing.T) {
				s, err := openFile(path, Options{LockWait: lockWait}, hostClock)
				if err != nil {
					t.Fatal(err)
				}
				s.crowd.wal = path + "-other"
				other := sqlite(t, path, "BEGIN IMMEDIATE")
				c := &call{claims: []dibs.Claim{lock("k")}, answers: make([]dibs.Answer, 1), since: time.Now(), done: make(chan struct{}, 1)}
				s.enqueue(c)
				defer grow(t, s.crowd.wal, lockWait/10, test.grow)()
				if s.turn() {
					t.Error("it came to write")
				}
				if took := time.Since(c.since); took < lockWait || took > lockWait+10*time.Millisecond {
					t.Errorf("it was answered after %v, LockWait is %v", took, lockWait)
				}
				err = s.crowded(c.err, c.answers)
				if busy := errors.Is(c.answers[0].Err, dibs.ErrBusy); busy != test.busy || errors.Is(err, ErrLocked) == busy {
					t.Errorf("it was answered %+v, %v", c.answers[0], err)
				}
				if err := errors.Join(other.Exec("ROLLBACK"), s.closeFile()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestLateness: to open a file that is locked takes LockWait, and one that others write
// to so many times as long.
func TestLateness(t *testing.T) {
	const lockWait = 10 * time.Second
	for _, test := range []struct {
		name       string
		grow, want time.Duration
	}{
		{"nobody writes", 0, lockWait},
		{"others write for a while", 2 * lockWait, 2*lockWait + lockWait/2},
		{"others write", 2 * crowdPatience * lockWait, crowdPatience * lockWait},
	} {
		t.Run(test.name, func(t *testing.T) {
			log := testFile(t)
			synctest.Test(t, func(t *testing.T) {
				s := &Store{opt: Options{LockWait: lockWait}, crowd: crowd{wal: log}}
				late, start := s.lateness(), time.Now()
				const tick = 100 * time.Millisecond
				defer grow(t, log, tick, test.grow)()
				for !late() {
					time.Sleep(tick)
				}
				if took := time.Since(start); took < test.want-2*tick || took > test.want+2*tick {
					t.Errorf("it was late after %v, not %v", took, test.want)
				}
			})
		})
	}
}

// TestOpenLockedAfterItsTurn: opening a file waits for its turn and for SQLite's lock
// for LockWait in all. (Time is simulated, and so is the kernel's queue.)
func TestOpenLockedAfterItsTurn(t *testing.T) {
	const lockWait = 4 * time.Second
	path := testFile(t)
	openTest(t, path, nil, hostClock)
	sqlite(t, path, "BEGIN IMMEDIATE")
	queue, err := os.Create(path + "-queue")
	if err != nil {
		t.Fatal(err)
	}
	defer queue.Close()
	conn, err := lite.Open(path, lite.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(path, Options{LockWait: lockWait}, hostClock, "", conn)
		turn := &turnstile{file: queue, asking: true, came: make(chan struct{}, 1)}
		s.turns.turnstile = turn
		start := time.Now()
		time.AfterFunc(lockWait*3/4, func() {
			turn.mu.Lock()
			turn.inside = true
			turn.mu.Unlock()
			turn.came <- struct{}{}
		})
		if err := s.setUpInTurn(s.lateness()); !errors.Is(fault(path, err), ErrLocked) {
			t.Errorf("opening it: %v", err)
		}
		if took := time.Since(start); took < lockWait || took > lockWait+50*time.Millisecond {
			t.Errorf("it took %v, LockWait is %v", took, lockWait)
		}
	})
}
