package sqlitestore

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"time"
)

// writeQueue lets one process at a time write to a file, in order. SQLite's own lock has
// no queue, so with many processes most attempts fail again and again. The kernel has a
// queue for a lock on a second file.
//
// It only gives fairness among Stores. SQLite's lock, which is taken too, gives
// correctness. Any program that can read the second file can lock it, too. So each Store
// that gets its turn writes the next number there, which takes the right to write. If the
// number stays the same and SQLite's lock is free, the turn belongs to a program that does
// not write, and is not waited for.
type writeQueue struct {
	file     *os.File // nil without such a lock
	unusable error    // why there is none, where there could be
	inside   bool
	left     time.Time // when this process last left
	asked    *asking   // the last wait in the kernel's queue; nil before

	number  uint64    // the last one that was read
	since   time.Time // since when it has been that; zero: this Store does not wait
	ignored bool      // the program with that turn does not write
}

const (
	// writeQueueSuffix is added to the store's file name.
	writeQueueSuffix = "-turn"
	// tick is how often a wait for the file checks whether it can end.
	tick = 10 * time.Millisecond
	// stalled is how long a turn may last before the Store looks whether SQLite's lock is
	// free. A quarter of LockWait, if that is shorter.
	stalled = 250 * time.Millisecond
	// yieldTime is the pause after a turn when other processes write, too, because the
	// next process in the kernel's queue needs time to wake up.
	yieldTime = 150 * time.Microsecond
)

// open opens the second file, or creates it. It has the mode of the store's file, so that
// the same users can use both.
func (t *writeQueue) open(path string, like os.FileInfo) {
	if !hasFileLocks {
		return
	}
	mode := like.Mode().Perm()
	f, err := os.OpenFile(path+writeQueueSuffix, os.O_RDWR|os.O_CREATE|noFollow, mode)
	if err != nil {
		t.unusable = err
		return
	}
	if info, err := f.Stat(); err == nil && info.Mode().Perm() != mode {
		_ = f.Chmod(mode) // another user's file keeps its mode
	}
	likeOwner(f, like)
	t.file = f
}

// enter waits for this process's turn. It calls idle every tick, and returns false when
// idle returns true. It returns true without the turn if the turn stalls, and free reports
// that SQLite's lock is free.
func (t *writeQueue) enter(patience time.Duration, idle, free func() bool) bool {
	if t.file == nil {
		return true
	}
	err := lockFile(t.file, false)
	if !errors.Is(err, errWouldWait) {
		t.enterNow(err)
		return true
	}
	if !t.moved() && t.ignored {
		return true
	}
	if t.asked == nil || !t.asked.join() {
		t.asked = ask(t.file)
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case err := <-t.asked.came:
			t.enterNow(err)
			return true
		case <-ticker.C:
			if idle() {
				t.asked.leave()
				return false
			}
			if t.moved() || time.Since(t.since) < patience {
				continue
			}
			if t.ignored = free(); t.ignored {
				t.asked.leave()
				return true
			}
			t.since = time.Now() // not at every tick, because hundreds of Stores may ask
		}
	}
}

// asking is a goroutine in the kernel's queue, which cannot be left. A turn that comes when it is
// not wanted is given back. If this process is inside again by then, it loses its lock, and only
// fairness.
type asking struct {
	file *os.File
	came chan error // has the turn, or why there is none

	mu     sync.Mutex
	wanted bool // under mu
	ended  bool // under mu
}

// ask begins to wait for a turn.
func ask(file *os.File) *asking {
	a := &asking{file: file, came: make(chan error, 1), wanted: true}
	go func() {
		err := lockFile(file, true)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.ended = true; a.wanted {
			a.came <- err
		} else {
			unlockFile(file)
		}
	}()
	return a
}

// join makes the turn wanted again. It reports false if the wait has ended.
func (a *asking) join() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted = !a.ended
	return a.wanted
}

// leave makes the turn unwanted. The caller has not received from came.
func (a *asking) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wanted = false; a.ended {
		<-a.came //nolint:errcheck // the caller has given up
		unlockFile(a.file)
	}
}

// enterNow begins a turn. After an error there is none, because a filesystem without such
// locks still has SQLite's.
func (t *writeQueue) enterNow(err error) {
	if t.inside = err == nil; t.inside {
		t.moved()
		// If it cannot be written, other Stores pass this one, which costs only fairness.
		_, _ = t.file.WriteAt(binary.BigEndian.AppendUint64(nil, t.number+1), 0)
	}
	t.since, t.ignored = time.Time{}, false
}

// moved reads the number, and reports whether it has changed since this Store waits.
func (t *writeQueue) moved() bool {
	var b [8]byte
	_, _ = t.file.ReadAt(b[:], 0) // a new file is empty
	n := binary.BigEndian.Uint64(b[:])
	if n == t.number && !t.since.IsZero() {
		return false
	}
	t.number, t.since, t.ignored = n, time.Now(), false
	return true
}

// trouble says why Stores do not queue, "" if they do.
func (t *writeQueue) trouble() string {
	switch {
	case t.unusable != nil:
		return t.unusable.Error()
	case t.ignored:
		return t.file.Name() + " is locked by a program that does not write"
	}
	return ""
}

// leave lets the next process in.
func (t *writeQueue) leave() {
	t.left = time.Now()
	if t.inside {
		t.inside = false
		unlockFile(t.file)
	}
}

// close closes the file. A goroutine in the kernel's queue ends when its turn comes.
func (t *writeQueue) close() error {
	if t.file == nil {
		return nil
	}
	t.leave()
	return t.file.Close()
}
