package sqllock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
)

// Session holds any number of advisory locks on one session of PostgreSQL, on a
// connection of its own: thousands, for what one or a few connections cost. It is for
// one process what Advisory is for one lock. Its methods are safe for concurrent use.
//
// Locks are tried in batches: those that are asked for while one is under way are the
// next. Who waits does so in a session of its own, of which there are a few; a lock that
// is granted there stays there until it is given up. While all of them are in use,
// those who wait beyond ask again every 2 to 100 ms, and may come after others who came
// later. Within this process those who want the same key come in their order.
//
// A lock whose session ends is lost, and its context ends at once; when the network is
// cut, SessionOptions.Heartbeat and 4 s later, before the server notices (it is told to
// after half a minute). The next call connects again.
//
// The server has memory for max_locks_per_transaction × max_connections locks (6,400,
// as it comes) of all sessions and kinds: raise the first for more.
type Session struct {
	config    *pgx.ConnConfig
	heartbeat time.Duration
	seats     seats
	life      context.Context // until Close
	end       context.CancelCauseFunc

	slots chan struct{} // of sessions to wait in, that are in use

	mu    sync.Mutex
	main  *wire
	idle  []*wire // sessions to wait in
	all   map[*wire]struct{}
	wires sync.WaitGroup
	dials chan struct{} // one at a time
}

// SessionOptions says how a Session is made. nil and the zero value mean the defaults.
type SessionOptions struct {
	// Waiting is how many more sessions there may be, to wait in; 0: 4.
	Waiting int
	// Heartbeat is how often a session is asked whether it lives; 0: 5 s, at least
	// 10 ms. One that does not answer within 4 s counts as ended. One that the server
	// ends is noticed at once; the heartbeat is for cut networks.
	Heartbeat time.Duration
}

// OpenSession connects to the database that the URL names, as pgx and libpq write it.
// It returns ErrPooler when there is a pooler in between that makes up the numbers of
// sessions, and ErrServer when the server cannot be asked.
func OpenSession(ctx context.Context, url string, o *SessionOptions) (*Session, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrServer, err)
	}
	return NewSession(ctx, config, o)
}

// NewSession is OpenSession with what pgx connects with.
func NewSession(ctx context.Context, config *pgx.ConnConfig, o *SessionOptions) (*Session, error) {
	if o == nil {
		o = &SessionOptions{}
	}
	heartbeat, err := heartbeatOf("SessionOptions", o.Heartbeat, 5*time.Second)
	if err != nil {
		return nil, err
	}
	waiting := o.Waiting
	if waiting == 0 {
		waiting = 4
	}
	if waiting < 0 {
		return nil, fmt.Errorf("sqllock: SessionOptions.Waiting is %d; it must be at least 1, or 0 for 4", waiting)
	}
	config = config.Copy()
	config.OnNotification = nil
	s := &Session{
		config: config, heartbeat: heartbeat,
		slots: make(chan struct{}, waiting), dials: make(chan struct{}, 1), all: map[*wire]struct{}{},
	}
	s.life, s.end = context.WithCancelCause(context.Background())
	if _, err := s.wire(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Lock waits for the lock and takes it. nil options mean the defaults.
//
// It returns dibs.ErrHeld when LockOptions.Wait is over, ErrServer, dibs.ErrClosed, and
// the context's cause when that ends. Then nothing is left behind. A key inside itself
// would wait for ever; so would two that wait for one another's locks: take them in the
// same order everywhere.
func (s *Session) Lock(ctx context.Context, key AdvisoryKey, o *LockOptions) (*Lock, error) {
	return s.lock(ctx, key, o, false)
}

// TryLock is Lock for those who would rather not wait: it returns dibs.ErrHeld when
// others have the lock, in this process too.
func (s *Session) TryLock(ctx context.Context, key AdvisoryKey, o *LockOptions) (*Lock, error) {
	return s.lock(ctx, key, o, true)
}

// Do runs fn with the lock, and unlocks when it returns, panics or calls
// runtime.Goexit. fn's context ends when the lock is lost; then Do returns
// dibs.ErrLost, joined to what fn returned. Before fn has begun it returns what Lock
// returns.
func (s *Session) Do(ctx context.Context, key AdvisoryKey, o *LockOptions, fn func(context.Context) error) error {
	l, err := s.Lock(ctx, key, o)
	if err != nil {
		return err
	}
	return l.run(fn)
}

// TryDo is Do for those who would rather not wait: it returns dibs.ErrHeld when others
// have the lock.
func (s *Session) TryDo(ctx context.Context, key AdvisoryKey, o *LockOptions, fn func(context.Context) error) error {
	l, err := s.TryLock(ctx, key, o)
	if err != nil {
		return err
	}
	return l.run(fn)
}

// Held reports whether anybody has the lock, of a session or of a transaction, shared
// or not. It takes nothing and waits for nobody. The answer may be old when it comes.
func (s *Session) Held(ctx context.Context, key AdvisoryKey) (bool, error) {
	w, err := s.wire(ctx)
	if err != nil {
		return false, err
	}
	select {
	case a := <-w.ask(&ask{op: opHeld, key: key}):
		return a.ok, explainSession(advisoryName(key), a.err)
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// Close gives all locks up and ends the connections. The contexts of locks that are
// held end with cause dibs.ErrClosed. It returns nil.
func (s *Session) Close() error {
	s.end(dibs.ErrClosed)
	s.mu.Lock()
	for w := range s.all {
		w.cut(dibs.ErrClosed)
	}
	s.mu.Unlock()
	s.wires.Wait()
	return nil
}

func (s *Session) lock(ctx context.Context, key AdvisoryKey, o *LockOptions, try bool) (*Lock, error) {
	t, err := o.begin(try)
	if err != nil {
		return nil, err
	}
	waiting, cancel := t.limit(ctx)
	defer cancel()
	name := advisoryName(key)
	at, home, err := s.seats.enter(waiting, key, &t)
	switch {
	case errors.Is(err, errHeldHere):
		return nil, t.held(name)
	case err != nil:
		return nil, t.ended(waiting, name)
	}
	if home == nil {
		if home, err = s.have(ctx, waiting, at, &t); err != nil {
			if waiting.Err() != nil {
				return nil, t.ended(waiting, name)
			}
			return nil, explainSession(name, err)
		}
	}
	return s.hold(ctx, at, home, name, &t)
}

// hold returns the lock that a session has.
func (s *Session) hold(ctx context.Context, at *seat, home *wire, name string, t *taking) (*Lock, error) {
	var l *Lock
	l = newLock(ctx, name, func(context.Context) error { return s.release(l, at, home, t.shared) })
	if !home.add(l, func() { s.seats.lost(at, home) }) {
		s.seats.lost(at, home)
		l.cancel(nil)
		return nil, explainSession(name, home.cause())
	}
	if ctx.Err() != nil { // the grant came too late
		_ = l.Unlock()
		return nil, t.ended(ctx, name)
	}
	return l, nil
}

// release gives a lock up. In the server that waits for nobody, so it needs no context.
func (s *Session) release(l *Lock, at *seat, home *wire, shared bool) error {
	home.remove(l)
	switch last, there := s.seats.leave(at, home); {
	case !there:
		return home.cause()
	case !last:
		return nil
	}
	op := opUnlock
	if shared {
		op = opUnlockShared
	}
	a := home.do(op, at.key)
	if a.err == nil && !a.ok {
		a.err = errNotThere
	}
	s.seats.pass(at)
	return a.err
}

// explainSession gives an error its meaning.
func explainSession(name string, err error) error {
	switch {
	case err == nil, errors.Is(err, dibs.ErrHeld), errors.Is(err, ErrServer), errors.Is(err, ErrPooler):
		return err
	case errors.Is(err, dibs.ErrClosed):
		return fmt.Errorf("sqllock: the session was closed: %w", dibs.ErrClosed)
	}
	return fmt.Errorf("%w: %s: %w", ErrServer, name, err)
}
