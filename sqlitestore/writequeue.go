package sqlitestore

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// turnstile lets one process at a time write to a file, in the order in which
// they came. SQLite's own lock has no queue: who asks at the right moment gets
// it, so under many processes most of them ask in vain, again and again. Here
// they stand in the kernel's queue for a lock on a file beside the store's.
//
// It is a courtesy among Stores and nothing more: correctness rests on SQLite's
// lock, which is taken too.
type turnstile struct {
	file   *os.File // nil where there are no such locks
	inside bool
	left   time.Time // when this process was inside last
}

const (
	// turnstileSuffix makes the name of the file beside the store's.
	turnstileSuffix = "-turn"
	// tick is how often somebody who waits for the file looks whether it still has to.
	tick = 10 * time.Millisecond
	// courtesy is how long the file is left to other processes after a turn, when they
	// write too: whoever is first in the kernel's queue has to wake up before it can
	// take its turn.
	courtesy = 150 * time.Microsecond
)

// open opens the file beside the store's, and makes it if need be.
func (t *turnstile) open(path string) (err error) {
	if !hasFileLocks {
		return nil
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm() // whoever may write the one may write the other
	}
	t.file, err = os.OpenFile(path+turnstileSuffix, os.O_RDWR|os.O_CREATE, mode)
	return err
}

// enter waits for this process's turn. While it waits it calls idle every now
// and then, and gives up when that reports true.
func (t *turnstile) enter(idle func() bool) bool {
	if t.file == nil {
		return true
	}
	err := lockFile(t.file, false)
	if !errors.Is(err, errWouldWait) {
		// A filesystem without such locks leaves SQLite's.
		t.inside = err == nil
		return true
	}
	// The kernel's queue cannot be left. Who gives up gives the turn back when it comes;
	// should this process be inside again by then, it has not queued for once.
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
func (t *turnstile) leave() {
	t.left = time.Now()
	if t.inside {
		t.inside = false
		unlockFile(t.file)
	}
}

// close gives everything back. A goroutine that still stands in the queue ends
// when its turn comes.
func (t *turnstile) close() error {
	if t.file == nil {
		return nil
	}
	t.leave()
	return t.file.Close()
}
