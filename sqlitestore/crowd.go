package sqlitestore

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// crowd tells a file that somebody keeps locked from one that many write to by turns,
// by its log: who waits for the one has to be told, and who waits for the other has to
// wait for longer.
type crowd struct {
	wal string // the log's path

	// What the log was like when somebody here looked last; theirs who waits to write.
	size    int64
	written time.Time

	moved atomic.Pointer[time.Time] // when it was seen that others have written
}

// crowdPatience is how many times as long as for a file that is locked somebody waits to
// open one that many write to.
const crowdPatience = 6

// look looks whether anybody has written. Who waits to write calls it now and then.
func (c *crowd) look() {
	info, err := os.Stat(c.wal)
	if err != nil || info.Size() == c.size && info.ModTime().Equal(c.written) {
		return
	}
	if !c.written.IsZero() {
		now := time.Now() // with its monotonic reading: clocks are set
		c.moved.Store(&now)
	}
	c.size, c.written = info.Size(), info.ModTime()
}

// wrote notes that somebody here has written, which is not to be taken for others.
func (c *crowd) wrote() { c.written = time.Time{} }

// moves reports whether somebody has written in that time.
func (c *crowd) moves(within time.Duration) bool {
	moved := c.moved.Load()
	return moved != nil && time.Since(*moved) < within
}

// crowded answers claims that were not written in time, though others were: they may
// be made again.
func (s *Store) crowded(err error, answers []dibs.Answer) error {
	if !errors.Is(err, ErrLocked) || !s.crowd.moves(s.opt.LockWait/2) {
		return err
	}
	for i := range answers {
		answers[i] = dibs.Answer{Err: fmt.Errorf("%w, and many write to the file: %w", dibs.ErrBusy, err)}
	}
	return nil
}
