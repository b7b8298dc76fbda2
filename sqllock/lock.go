package sqllock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// Lock is an advisory or named lock that is held, or several. It lasts until Unlock, or
// until its session ends. Its methods are safe for concurrent use.
type Lock struct {
	name    string // for errors
	context context.Context
	cancel  context.CancelCauseFunc
	release func(context.Context) error
	observe func(kind dibs.EventKind, settled time.Duration, err error) // called once

	ending atomic.Bool   // Unlock or lose has begun
	ended  chan struct{} // closed when err is set
	err    error         // what Unlock returns
}

// newLock returns a lock that the server has just granted.
func newLock(ctx context.Context, name string, release func(context.Context) error) *Lock {
	l := &Lock{name: name, release: release, ended: make(chan struct{})}
	l.context, l.cancel = context.WithCancelCause(ctx)
	return l
}

// Context returns a context that ends when the lock is unlocked, or when the context
// given to Lock ends. It ends with cause dibs.ErrLost when the session of the lock ends,
// because another session may have the lock then. Pass it to everything that the lock
// protects.
func (l *Lock) Context() context.Context { return l.context }

// String returns the lock's name on the server. It does not contain the caller's name, so
// it may be logged.
func (l *Lock) String() string { return l.name }

// Unlock releases the lock and ends its Context. It returns dibs.ErrLost if the session
// ended before, because another session may have had the lock since. If the release
// fails, the session is ended, so the pool never gets a session with a lock. A second
// call does nothing and returns the same. Unlock waits at most 4 s for the server.
func (l *Lock) Unlock() error {
	if !l.ending.CompareAndSwap(false, true) {
		<-l.ended
		return l.err
	}
	l.cancel(nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.context), answerLimit)
	defer cancel()
	began, kind := time.Now(), dibs.EventReleased
	if err := l.release(ctx); err != nil {
		l.err, kind = lost(l.name, err), dibs.EventLost
	}
	l.observe(kind, time.Since(began), l.err)
	close(l.ended)
	return l.err
}

// lose ends a lock whose session has ended. An Unlock that has begun finds the error by
// itself.
func (l *Lock) lose(why error) {
	cause := lost(l.name, why)
	l.cancel(cause)
	if l.ending.CompareAndSwap(false, true) {
		l.err = cause
		l.observe(dibs.EventLost, 0, cause)
		close(l.ended)
	}
}

// noFunction returns the error of a call without a function to run. It is found before a lock is taken.
func noFunction(call string) error {
	return fmt.Errorf("sqllock: %s was given no function; pass the function that runs under the lock", call)
}

// under runs fn under a lock and unlocks it however fn ends.
func under(call string, fn func(context.Context) error, take func() (*Lock, error)) (err error) {
	if fn == nil {
		return noFunction(call)
	}
	l, err := take()
	if err != nil {
		return err
	}
	defer func() {
		if lost := l.Unlock(); lost != nil {
			err = errors.Join(err, lost)
		}
	}()
	return fn(l.context)
}

// LockOptions says how a lock is taken. nil and the zero value mean: exclusively, and
// wait until the context ends.
type LockOptions struct {
	// Shared lets other holders in that take the lock shared, too. Default: false.
	// MySQL's named locks cannot be shared.
	Shared bool
	// Wait is the longest wait; then the error is dibs.ErrHeld. 0: until the context
	// ends. The server is asked at least once, and getting a connection may take a
	// second. TryLock and TryDo ignore it.
	Wait time.Duration
}

// request is one call that takes a lock.
type request struct {
	shared, try bool
	wait        time.Duration // 0: no limit
	since       time.Time
}

func (o *LockOptions) begin(try bool) (request, error) {
	if o == nil {
		o = &LockOptions{}
	}
	return begin("LockOptions", o.Shared, o.Wait, try)
}

func begin(options string, shared bool, wait time.Duration, try bool) (request, error) {
	if wait < 0 {
		return request{}, fmt.Errorf("sqllock: %s.Wait is %v; it must not be negative", options, wait)
	}
	return request{shared: shared, try: try, wait: wait, since: time.Now()}, nil
}

// limit returns a context that ends with cause errWaited when the wait is over.
func (t *request) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.wait == 0 {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, t.since.Add(t.wait), errWaited)
}

// left returns how long the server may wait in one statement: at most longest. It returns
// false when the wait is over.
func (t *request) left(longest time.Duration) (time.Duration, bool) {
	if t.wait == 0 {
		return longest, true
	}
	left := t.wait - time.Since(t.since)
	return min(left, longest), left > 0
}

// held is the error of a try that found the lock held.
func (t *request) held(name string) error {
	e := &HeldError{Lock: name}
	if !t.try {
		e.Waited = time.Since(t.since)
	}
	return e
}

// ended is the error of a try whose context ended.
func (t *request) ended(ctx context.Context, name string) error {
	if cause := context.Cause(ctx); !errors.Is(cause, errWaited) {
		return fmt.Errorf("sqllock: waiting for the lock %s: %w", name, cause)
	}
	return t.held(name)
}

var errWaited = errors.New("sqllock: waited long enough")

// Errors beside dibs.ErrHeld, dibs.ErrLost and dibs.ErrClosed. Their texts contain the
// server's own words and what to do.
var (
	// ErrPooler: between the program and the server is a pooler that gives each
	// transaction another session. A lock of a session cannot be held there.
	ErrPooler = errors.New("sqllock: a pooler gives each transaction another session, so a lock would stay behind in a foreign session")
	// ErrDeadlock: the server found a circle of waiters and refused this request. The
	// caller keeps the locks that it had before.
	ErrDeadlock = errors.New("sqllock: deadlock: the waiters form a circle")
	// ErrServer: the server refused, did not answer, or could not be reached. The lock is
	// not held, because its session was ended.
	ErrServer = errors.New("sqllock: the lock could not be taken")
)

// HeldError is the dibs.ErrHeld of an advisory or named lock.
type HeldError struct {
	// Lock names the lock as the server knows it.
	Lock string
	// Waited is how long the caller waited. 0: it did not wait.
	Waited time.Duration
}

func (e *HeldError) Error() string {
	if e.Waited > 0 {
		return fmt.Sprintf("sqllock: the lock %s is still held after a wait of %v; wait longer, or try again later", e.Lock, e.Waited.Round(time.Millisecond))
	}
	return fmt.Sprintf("sqllock: the lock %s is held; try again later, or wait for it with Lock or Do", e.Lock)
}

// Is makes errors.Is(err, dibs.ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == dibs.ErrHeld }

// lost is the dibs.ErrLost of a lock whose session ended.
func lost(name string, why error) error {
	if errors.Is(why, dibs.ErrLost) || errors.Is(why, dibs.ErrClosed) {
		return why
	}
	return fmt.Errorf("%w: the session that held the lock %s has ended, and another session may have the lock: %w", dibs.ErrLost, name, why)
}

// answerLimit bounds the time for a statement that waits for no lock. Only tests change it.
var answerLimit = 4 * time.Second

// connectLimit bounds the time to get a connection if the wait is shorter. Only tests change it.
var connectLimit = time.Second

// waitSlice is the longest wait in one statement on MySQL and MariaDB. If waitSlice plus
// answerLimit passes without an answer, the connection counts as cut.
const waitSlice = time.Minute
