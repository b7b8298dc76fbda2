package sqlitestore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

const (
	// maxElements and maxBytes bound one transaction, so that nobody waits long
	// for those that came before.
	maxElements = 4096
	maxBytes    = 16 << 20

	// fileCheck is how often the writer looks whether its file is still there.
	fileCheck = time.Second

	// jointsLast is how long the application's transactions that are waiting may last in
	// all before the calls are written again.
	jointsLast = 5 * time.Millisecond
)

// write is the writing goroutine: it takes all the calls that there are, of all
// verbs, runs them in one transaction, and so pays for one fsync. The calls that
// arrive meanwhile are the next transaction.
func (s *Store) write() {
	defer close(s.ended)
	for {
		select {
		case <-s.calls:
			for s.round() {
			}
		case <-s.closing:
			s.finish(s.drain(), &FileError{Path: s.path, Err: ErrClosed})
			return
		}
	}
}

// round waits for this process's turn to write, and runs one transaction of calls and
// then those of the application's that wait, for jointsLast in all: the longer they
// take, the more calls share the next one. It reports whether there was anything to do.
func (s *Store) round() bool {
	if s.idle() {
		return false
	}
	if s.tx.others {
		time.Sleep(courtesy - time.Since(s.turnstile.left))
	}
	entered := s.turnstile.enter(func() bool {
		s.queueing()
		return s.idle()
	})
	s.unblock()
	if !entered {
		return false
	}
	defer s.turnstile.leave()
	if s.lock() {
		s.run(s.take())
	}
	for start := time.Now(); time.Since(start) < jointsLast; {
		select {
		case j := <-s.joints:
			s.host(j)
		default:
			return true
		}
	}
	return true
}

// host lets a transaction of the application's run, and waits for its end.
func (s *Store) host(j *joint) {
	defer s.unblock()
	close(j.mine)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-j.over:
			return
		case <-s.closing:
			return
		case <-ticker.C:
			s.finish(s.expired(), s.lockedFor(nil))
		}
	}
}

// queueing is what the writing goroutine does now and then while other Stores write: a call
// that has waited for long enough can be made again.
func (s *Store) queueing() {
	busy := fmt.Errorf("%w, because many write to the file: %w", dibs.ErrBusy, s.lockedFor(nil))
	for _, c := range s.expired() {
		for i := range c.answers {
			c.answers[i] = dibs.Answer{Err: busy}
		}
		for i := range c.errs {
			c.errs[i] = busy
		}
		var err error
		if c.work != nil {
			err = busy
		}
		s.finish([]*call{c}, err)
	}
}

// lock begins a transaction for the calls in the queue. It reports false when
// there are none, or none any more.
func (s *Store) lock() bool {
	defer s.unblock()
	for wait := 50 * time.Microsecond; s.hasCalls(); wait = min(2*wait, 3*time.Millisecond) {
		err := s.st["begin"].Run()
		if err == nil {
			return true
		}
		if !isCode(err, lite.Busy, lite.Locked) {
			s.finish(s.drain(), fault(s.path, err))
			return false
		}
		s.finish(s.expired(), s.lockedFor(err))
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-s.closing:
			return false
		}
	}
	return false
}

// lockedFor says that others had the file locked for too long.
func (s *Store) lockedFor(err error) error {
	err = errors.Join(fmt.Errorf("%w, for %v now", ErrLocked, s.opt.LockWait), err)
	return &FileError{Path: s.path, Err: err}
}

// take takes the calls for one transaction out of the queue, renewals first,
// because a lease that is not renewed in time is lost.
func (s *Store) take() []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, elements, bytes := s.tx.calls[:0], 0, 0
	for i, c := range s.queue {
		elements += c.elements()
		bytes += c.bytes()
		if i > 0 && (elements > maxElements || bytes > maxBytes) {
			break
		}
		c.phase = applying
		calls = append(calls, c)
	}
	s.queue = slices.Delete(s.queue, 0, len(calls))
	slices.SortStableFunc(calls, func(a, b *call) int { return min(1, len(b.renewals)) - min(1, len(a.renewals)) })
	s.tx.calls = calls
	return calls
}

// run runs calls in the transaction that is open, and answers them.
func (s *Store) run(calls []*call) {
	s.tx.begin(s)
	for _, c := range calls {
		s.tx.apply(c)
	}
	s.setPhase(calls, committing)
	s.tx.commit()
	err := s.tx.err
	if err != nil {
		s.rollback()
		if len(calls) > 1 && isCode(err, lite.Full, lite.IOErr, lite.NoMem, lite.TooBig) {
			// One of them may be to blame, one that is too large for the disk
			// for instance. Nothing was done, so each can have its own try.
			s.runEach(slices.Clone(calls))
			return
		}
	}
	s.finish(calls, fault(s.path, err))
	if err == nil {
		s.tx.tell()
	}
}

// rollback undoes the transaction, unless SQLite has done so by itself.
func (s *Store) rollback() {
	if s.conn.InTransaction() {
		// If it fails the next begin does, and says why.
		_ = s.st["rollback"].Run()
	}
}

// checkFile returns an error when the path does not name the file that is open
// any more: other processes would then work on another file than this one.
func (s *Store) checkFile() error {
	if time.Since(s.tx.checked) < fileCheck {
		return nil
	}
	info, err := os.Stat(s.full)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMoved, err)
	}
	if !os.SameFile(info, s.file) {
		return ErrMoved
	}
	s.tx.checked = time.Now()
	return nil
}

func (s *Store) hasCalls() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) > 0
}

// idle reports whether there is nothing to do, or no more.
func (s *Store) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed || len(s.queue)+len(s.joints) == 0
}

func (s *Store) unblock() {
	s.mu.Lock()
	s.blocked = false
	s.mu.Unlock()
}

// setPhase moves calls on, and lets those go who wait for the end of applying.
func (s *Store) setPhase(calls []*call, p phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		c.phase = p
	}
	if s.applied != nil {
		close(s.applied)
		s.applied = nil
	}
}

// runEach runs calls one by one, but for those that nobody waits for; their outcome is
// unknown to their callers.
func (s *Store) runEach(calls []*call) {
	for _, c := range calls {
		s.mu.Lock()
		left := c.left
		c.phase = applying
		s.mu.Unlock()
		if left {
			continue
		}
		if err := s.st["begin"].Run(); err != nil {
			s.finish([]*call{c}, fault(s.path, err))
			continue
		}
		s.run([]*call{c})
	}
}

// drain takes all calls out of the queue.
func (s *Store) drain() []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.queue
	s.queue = nil
	return calls
}

// expired takes the calls out of the queue that have waited for the lock, which others
// have right now, for as long as they may.
func (s *Store) expired() []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = true
	var calls []*call
	s.queue = slices.DeleteFunc(s.queue, func(c *call) bool {
		late := time.Since(c.since) >= s.opt.LockWait
		if late {
			calls = append(calls, c)
		}
		return late
	})
	return calls
}

// finish answers calls.
func (s *Store) finish(calls []*call, err error) {
	s.mu.Lock()
	for _, c := range calls {
		c.phase, c.err = finished, err
		if !c.left {
			c.done <- struct{}{}
		}
	}
	s.mu.Unlock()
}

// errOtherBoot says that the file was opened by another host while it was open
// here. Boots are compared in every transaction, so neither host does anything
// after the other has begun.
func errOtherBoot(theirs string) error {
	return fmt.Errorf("%w: its boot id is %q", ErrOtherHost, theirs)
}

var errNoMeta = errors.New("its meta row is gone")
