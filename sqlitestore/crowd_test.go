package sqlitestore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// TestCrowd: who does not come to write in time is told whether somebody keeps the file
// locked, or whether others write all the time. Then it has to ask again, and to open the
// file takes longer.
func TestCrowd(t *testing.T) {
	t.Parallel()
	const lockWait = 4 * time.Second
	path := testFile(t)
	s := openTest(t, path, &Options{LockWait: lockWait}, hostClock)
	front, err := newTurnstile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !front.enter(func() bool { return false }) {
		t.Fatal("it is not our turn")
	}
	answers := make([]dibs.Answer, 1)
	if err := s.Claim(t.Context(), []dibs.Claim{lock("k")}, answers); !errors.Is(err, ErrLocked) {
		t.Fatalf("in front of a file that is locked: %+v, %v", answers[0], err)
	}
	if _, err := openFile(path, s.opt, hostClock); !errors.Is(err, ErrLocked) {
		t.Fatalf("opening a file that is locked: %v", err)
	}
	front.leave()
	mustGrant(t, s, lock("own")) // what is written here is not others'
	if !front.enter(func() bool { return false }) {
		t.Fatal("it is not our turn")
	}
	soon, cancel := context.WithTimeout(t.Context(), lockWait/20)
	defer cancel()
	if err := s.Claim(soon, []dibs.Claim{lock("k")}, answers); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("in front of a file that is locked, for a moment: %+v, %v", answers[0], err)
	}

	writes(t, path)
	if err := s.Claim(t.Context(), []dibs.Claim{lock("k")}, answers); err != nil || !errors.Is(answers[0].Err, dibs.ErrBusy) || !errors.Is(answers[0].Err, ErrLocked) {
		t.Fatalf("in a crowd: %+v, %v", answers[0], err)
	}
	start := time.Now()
	if _, err := openFile(path, s.opt, hostClock); !errors.Is(err, ErrLocked) || time.Since(start) < 2*lockWait {
		t.Fatalf("opening in a crowd: %v, after %v", err, time.Since(start))
	}
	if err := s.Settle(t.Context(), []dibs.Settlement{{Key: lock("k").Key, Token: dibs.NewToken()}}, make([]error, 1)); !errors.Is(err, ErrLocked) {
		t.Fatalf("settling in a crowd: %v", err)
	}
	front.leave()
	mustGrant(t, s, lock("k"))
}

// TestOpenLockedAfterItsTurn: who has waited for its turn in front of a file that is
// locked waits for no longer than who had not to.
func TestOpenLockedAfterItsTurn(t *testing.T) {
	t.Parallel()
	const lockWait = 4 * time.Second
	path := testFile(t)
	s := openTest(t, path, nil, hostClock)
	front, err := newTurnstile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !front.enter(func() bool { return false }) {
		t.Fatal("it is not our turn")
	}
	sqlite(t, path, "BEGIN IMMEDIATE")
	opt := s.opt
	opt.LockWait = lockWait
	start := time.Now()
	time.AfterFunc(lockWait*3/4, front.leave)
	if _, err := openFile(path, opt, hostClock); !errors.Is(fault(path, err), ErrLocked) || time.Since(start) > lockWait*3/2 {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// writes has somebody write to the file all the time, until the test ends.
func writes(t *testing.T, path string) {
	conn := sqlite(t, path)
	stop, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-ended
	})
	go func() {
		defer close(ended)
		pause := time.NewTicker(5 * time.Millisecond)
		defer pause.Stop()
		for {
			if err := conn.Exec("UPDATE meta SET one = one"); err != nil && !isCode(err, lite.Busy, lite.Locked) {
				t.Error(err)
				return
			}
			select {
			case <-pause.C:
			case <-stop:
				return
			}
		}
	}()
}
