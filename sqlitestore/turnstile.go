package sqlitestore

import (
	"errors"
	"io/fs"
	"os"
	"sync"
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
	file *os.File // nil where there are no such locks

	mu     sync.Mutex
	inside bool
	wanted bool          // somebody waits for entered
	asking bool          // a goroutine stands in the kernel's queue
	came   chan struct{} // has an element when inside became true while asking
}

// turnstileSuffix makes the name of the file beside the store's.
const turnstileSuffix = "-turn"

// newTurnstile opens the file beside the store's, and makes it if need be.
func newTurnstile(path string) (*turnstile, error) {
	t := &turnstile{came: make(chan struct{}, 1)}
	if !hasFileLocks {
		return t, nil
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm() // whoever may write the one may write the other
	}
	file, err := os.OpenFile(path+turnstileSuffix, os.O_RDWR|os.O_CREATE, mode)
	if err != nil {
		return nil, err
	}
	t.file = file
	return t, nil
}

// enter waits for this process's turn. While it waits it calls idle every now
// and then, and gives up when that reports true.
func (t *turnstile) enter(idle func() bool) bool {
	if t.file == nil {
		return true
	}
	t.mu.Lock()
	if !t.asking {
		err := lockFile(t.file, false)
		if err == nil || !errors.Is(err, errWouldWait) {
			// A filesystem without such locks leaves SQLite's.
			t.inside = err == nil
			t.mu.Unlock()
			return true
		}
		t.asking = true
		go t.ask()
	}
	t.wanted = true
	t.mu.Unlock()

	tick := time.NewTicker(turnstileTick)
	defer tick.Stop()
	for {
		select {
		case <-t.came:
			return true
		case <-tick.C:
			if idle() && t.stopWaiting() {
				return false
			}
		}
	}
}

// turnstileTick is how often somebody who waits looks whether it still has to.
const turnstileTick = 10 * time.Millisecond

// stopWaiting reports false when the turn has come after all.
func (t *turnstile) stopWaiting() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inside {
		return false
	}
	t.wanted = false
	return true
}

// ask stands in the kernel's queue, which cannot be left, and gives the turn
// back if nobody wants it any more when it comes.
func (t *turnstile) ask() {
	err := lockFile(t.file, true)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asking = false
	if !t.wanted {
		if err == nil {
			unlockFile(t.file)
		}
		return
	}
	t.wanted = false
	t.inside = err == nil
	t.came <- struct{}{}
}

// leave lets the next process in.
func (t *turnstile) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inside {
		t.inside = false
		unlockFile(t.file)
	}
}

// close gives everything back. A goroutine that still stands in the queue ends
// when its turn comes.
func (t *turnstile) close() error {
	t.leave()
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}
