package sqlitestore

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

const (
	// maxElements and maxBytes bound one transaction, so that later calls do not wait
	// long.
	maxElements = 4096
	maxBytes    = 16 << 20

	// turnsLimit bounds the time for application transactions between two
	// transactions of calls.
	turnsLimit = 5 * time.Millisecond
)

// write is the writing goroutine. It runs all waiting calls in one transaction, so they
// share one fsync. Calls that arrive meanwhile form the next transaction.
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

// round waits for this process's turn to write, and runs one transaction of calls, and
// then waiting application transactions for turnsLimit. It reports whether there was
// work.
func (s *Store) round() bool {
	if s.idle() {
		return false
	}
	if s.tx.others {
		time.Sleep(yieldTime - time.Since(s.writeQueue.left))
	}
	entered := s.writeQueue.enter(s.opt.patience(), func() bool {
		s.expireQueued()
		return s.idle()
	}, s.isFree)
	s.unblock()
	if !entered {
		return false
	}
	defer s.writeQueue.leave()
	if s.lock() {
		s.run(s.take())
	}
	for start := time.Now(); time.Since(start) < turnsLimit; {
		select {
		case j := <-s.turns:
			s.runTurn(j)
		default:
			return true
		}
	}
	return true
}

// runTurn grants a turn to an application transaction, and waits for its end.
func (s *Store) runTurn(j *turn) {
	defer s.unblock()
	close(j.granted)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-j.done:
			return
		case <-s.closing:
			return
		case <-ticker.C:
			s.finish(s.expired(), s.lockedFor(nil))
		}
	}
}

// expireQueued ends calls that have waited too long while other Stores write. Their
// elements get store.ErrBusy, so the client asks again.
func (s *Store) expireQueued() {
	busy := fmt.Errorf("%w, because many processes write to the file: %w", store.ErrBusy, s.lockedFor(nil))
	for _, c := range s.expired() {
		for i := range c.answers {
			c.answers[i] = store.Answer{Err: busy}
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

// lock begins a transaction for the queued calls. It returns false when there are none.
func (s *Store) lock() bool {
	defer s.unblock()
	again := backoff.Exponential{Min: 50 * time.Microsecond, Max: 3 * time.Millisecond}
	for failed := 1; s.hasCalls(); failed++ {
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
		case <-time.After(again.Pause(failed)):
		case <-s.closing:
			return false
		}
	}
	return false
}

// lockedFor is the error of a wait that was too long.
func (s *Store) lockedFor(err error) error {
	err = errors.Join(fmt.Errorf("%w, for more than %v", ErrLocked, s.opt.LockWait), err)
	return &FileError{Path: s.path, Err: err}
}

// take takes the calls of one transaction out of the queue, renewals first, because a
// late renewal loses a lease.
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

// run runs calls in the open transaction and answers them.
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
			// One call may be the reason, for example one too large for the disk.
			// Nothing was done, so each call runs alone.
			s.runEach(slices.Clone(calls))
			return
		}
	}
	s.finish(calls, fault(s.path, err))
	if err == nil {
		s.tx.notify()
	}
}

// rollback undoes the transaction, unless SQLite has done it.
func (s *Store) rollback() {
	if s.conn.InTransaction() {
		// If it fails, the next begin reports the error.
		_ = s.st["rollback"].Run()
	}
}

func (s *Store) hasCalls() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) > 0
}

// idle reports whether there is no more work.
func (s *Store) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed || len(s.queue)+len(s.turns) == 0
}

func (s *Store) unblock() {
	s.mu.Lock()
	s.blocked = false
	s.mu.Unlock()
}

// setPhase sets the phase of calls, and wakes callers that wait for the end of applying.
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

// runEach runs calls one by one, except those whose callers have left.
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

// expired takes the calls out of the queue that have waited for LockWait.
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

// errOtherBoot: another host opened the file. Every transaction compares the boots, so
// this host does nothing after the other one has begun.
func errOtherBoot(theirs string) error {
	return fmt.Errorf("%w: its boot id is %q", ErrOtherHost, theirs)
}

var errNoMeta = errors.New("its meta row is missing")
