package sqllock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// Lock is an advisory or named lock that is held, or several: until Unlock, or until
// the session that holds it ends. Its methods are safe for concurrent use.
type Lock struct {
	name    string // for errors
	context context.Context
	cancel  context.CancelCauseFunc
	release func(context.Context) error

	ending atomic.Bool   // it was unlocked, or lost
	ended  chan struct{} // err is there
	err    error         // what Unlock answers
}

// newLock returns a lock that was granted just now.
func newLock(ctx context.Context, name string, release func(context.Context) error) *Lock {
	l := &Lock{name: name, release: release, ended: make(chan struct{})}
	l.context, l.cancel = context.WithCancelCause(ctx)
	return l
}

// Context ends when the lock is unlocked, when the context given to Lock ends, and
// when the session ends that holds it: then its cause is dibs.ErrLost, and somebody
// else may have the lock. Pass it on to all that the lock guards.
func (l *Lock) Context() context.Context { return l.context }

// String names the lock as the server knows it. It tells nothing about the name that
// it was made of.
func (l *Lock) String() string { return l.name }

// Unlock gives the lock up. It returns dibs.ErrLost when the session that held it
// ended before, so that somebody else may have had the lock meanwhile. Its Context
// ends in any case, and no session that has the lock is handed on. Calling it again
// does nothing and returns the same. It waits for nobody; a server that does not answer
// costs some seconds.
func (l *Lock) Unlock() error {
	if !l.ending.CompareAndSwap(false, true) {
		<-l.ended
		return l.err
	}
	l.cancel(nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.context), answerLimit)
	defer cancel()
	if err := l.release(ctx); err != nil {
		l.err = lost(l.name, err)
	}
	close(l.ended)
	return l.err
}

// lose ends the lock: its session has ended, or is ended. One that is being unlocked
// finds out by itself.
func (l *Lock) lose(why error) {
	cause := lost(l.name, why)
	l.cancel(cause)
	if l.ending.CompareAndSwap(false, true) {
		l.err = cause
		close(l.ended)
	}
}

// run runs fn under the lock and unlocks on every way out.
func (l *Lock) run(fn func(context.Context) error) (err error) {
	defer func() {
		if gone := l.Unlock(); gone != nil {
			err = errors.Join(err, gone)
		}
	}()
	return fn(l.context)
}

// LockOptions says how a lock is taken. nil and the zero value mean exclusively, and
// to wait until the context ends.
type LockOptions struct {
	// Shared lets others have it who take it shared too. MySQL's named locks cannot.
	Shared bool
	// Wait is the longest wait, after which the answer is dibs.ErrHeld; 0: until the
	// context ends. The server is asked once, however short it is, and a connection to
	// ask it with may take a second. TryLock and TryDo do not wait, whatever it is.
	Wait time.Duration
}

// taking is one attempt to take a lock.
type taking struct {
	shared, try bool
	wait        time.Duration // 0: no limit
	since       time.Time
}

// begin begins an attempt. nil options mean the defaults.
func (o *LockOptions) begin(try bool) (taking, error) {
	if o == nil {
		o = &LockOptions{}
	}
	if o.Wait < 0 {
		return taking{}, fmt.Errorf("sqllock: LockOptions.Wait is %v; it must not be negative", o.Wait)
	}
	return taking{shared: o.Shared, try: try, wait: o.Wait, since: time.Now()}, nil
}

// limit returns a context that ends when the wait has lasted long enough, with cause
// errWaited.
func (t *taking) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.wait == 0 {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, t.since.Add(t.wait), errWaited)
}

// left returns how long the server may wait in one go: most as much as longest.
// false when the time is over.
func (t *taking) left(longest time.Duration) (time.Duration, bool) {
	if t.wait == 0 {
		return longest, true
	}
	left := t.wait - time.Since(t.since)
	return min(left, longest), left > 0
}

// held is the answer to an attempt that did not get the lock.
func (t *taking) held(name string) error {
	e := &HeldError{Lock: name}
	if !t.try {
		e.Waited = time.Since(t.since)
	}
	return e
}

// ended is the answer to an attempt whose context ended: held, if it was the attempt's
// own limit.
func (t *taking) ended(ctx context.Context, name string) error {
	if cause := context.Cause(ctx); !errors.Is(cause, errWaited) {
		return fmt.Errorf("sqllock: waiting for the lock %s: %w", name, cause)
	}
	return t.held(name)
}

// errWaited ends the context of an attempt that has waited long enough.
var errWaited = errors.New("sqllock: waited long enough")

// Answers beside dibs.ErrHeld, dibs.ErrLost and dibs.ErrClosed. The texts have the
// server's own words and the cure.
var (
	// ErrPooler: a pooler is between the program and the server that gives each
	// transaction another session, and a lock was asked for that belongs to a session.
	ErrPooler = errors.New("sqllock: a pooler is in between, and the lock would stay behind in a session of others")
	// ErrDeadlock: the server found that some wait for one another in a circle, and
	// refused this one. It has the locks that it had before.
	ErrDeadlock = errors.New("sqllock: locks are waited for in a circle")
	// ErrServer: the server could not be asked, did not answer, or refused. The lock
	// is not held: the session was ended in which it might have been.
	ErrServer = errors.New("sqllock: the lock could not be had")
)

// HeldError is the dibs.ErrHeld that a caller gets.
type HeldError struct {
	// Lock names the lock as the server knows it.
	Lock string
	// Waited is how long the caller waited before it gave up; 0 when it did not.
	Waited time.Duration
}

func (e *HeldError) Error() string {
	if e.Waited > 0 {
		return fmt.Sprintf("sqllock: the lock %s is held, after waiting %v; wait longer, or come back later", e.Lock, e.Waited.Round(time.Millisecond))
	}
	return fmt.Sprintf("sqllock: the lock %s is held; come back later, or wait for it with Lock or Do", e.Lock)
}

// Is makes errors.Is(err, dibs.ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == dibs.ErrHeld }

// lost is the dibs.ErrLost of a lock whose session ended.
func lost(name string, why error) error {
	if errors.Is(why, dibs.ErrLost) || errors.Is(why, dibs.ErrClosed) {
		return why
	}
	return fmt.Errorf("%w: the session ended that held the lock %s, and somebody else may have it: %w", dibs.ErrLost, name, why)
}

// answerLimit is how long the server may take for an answer that waits for nobody.
const answerLimit = 4 * time.Second

// waitSlice is the longest that MySQL and MariaDB are asked to wait in one go: after it, and
// answerLimit, a connection on which nothing came is as good as cut.
const waitSlice = time.Minute
