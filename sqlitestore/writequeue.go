package sqlitestore

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// writeQueue lets one process at a time write to a file, in order. SQLite's own lock has
// no queue, so with many processes most attempts fail again and again. The kernel has a
// queue for a lock on a second file.
//
// It only gives fairness among Stores. SQLite's lock, which is taken too, gives
// correctness.
type writeQueue struct {
	file   *os.File // nil on systems without such locks
	inside bool
	left   time.Time // when this process last left
}

const (
	// writeQueueSuffix is added to the store's file name.
	writeQueueSuffix = "-turn"
	// tick is how often a wait for the file checks whether it can end.
	tick = 10 * time.Millisecond
	// yieldTime is the pause after a turn when other processes write, too, because the
	// next process in the kernel's queue needs time to wake up.
	yieldTime = 150 * time.Microsecond
)

// open opens the second file, or creates it.
func (t *writeQueue) open(path string) (err error) {
	if !hasFileLocks {
		return nil
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm() // the same users may write both files
	}
	t.file, err = os.OpenFile(path+writeQueueSuffix, os.O_RDWR|os.O_CREATE, mode)
	return err
}

// enter waits for this process's turn. It calls idle every tick, and returns false when
// idle returns true.
func (t *writeQueue) enter(idle func() bool) bool {
	if t.file == nil {
		return true
	}
	err := lockFile(t.file, false)
	if !errors.Is(err, errWouldWait) {
		// A filesystem without such locks still has SQLite's.
		t.inside = err == nil
		return true
	}
	// The kernel's queue cannot be left, so a turn that comes too late is given back.
	// If this process is inside again by then, it loses its lock, and only fairness.
	file, came, gaveUp := t.file, make(chan error), make(chan struct{})
	go func() {
		err := lockFile(file, true)
		select {
		case came <- err:
		case <-gaveUp:
			unlockFile(file)
		}
	}()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case err := <-came:
			t.inside = err == nil
			return true
		case <-ticker.C:
			if idle() {
				close(gaveUp)
				return false
			}
		}
	}
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
