package sqllock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// openLimit bounds connecting.
	openLimit = 8 * time.Second
	// How long somebody waits before asking again who has no session to wait in.
	againMin = 2 * time.Millisecond
	againMax = 100 * time.Millisecond
	// attempts is how often a try is made that a session's end interrupted.
	attempts = 3
)

// sessionSQL sets a session up: nothing ends it while it holds, and a host that is gone
// or cut off keeps its locks for half a minute, not for the hours that are usual.
const sessionSQL = `SET idle_session_timeout = 0; SET statement_timeout = 0; SET lock_timeout = 0;
SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4; SET tcp_user_timeout = 30000`

// have asks the server for the lock of a seat, and waits if it is to, until waiting
// ends. It tells the seat what became of it.
func (s *Session) have(ctx, waiting context.Context, at *seat, t *taking) (*wire, error) {
	w, err := s.try(ctx, at, t) // whatever the wait, it is asked once
	if w != nil || err != nil {
		return w, err
	}
	if t.try {
		s.seats.pass(at)
		return nil, t.held(advisoryName(at.key))
	}
	for again := againMin; ; again = min(2*again, againMax) {
		timer := time.NewTimer(again/2 + rand.N(again/2))
		select {
		case s.slots <- struct{}{}:
			timer.Stop()
			w, err := s.block(ctx, at, t)
			switch {
			case w != nil:
				return w, nil
			case err == nil: // the time is over
				s.seats.pass(at)
				return nil, t.held(advisoryName(at.key))
			case !errors.Is(err, errNoWire):
				s.seats.pass(at)
				return nil, err
			}
			timer.Reset(again)
			select { // there may be no connection left, but the lock is still to be had
			case <-timer.C:
			case <-waiting.Done():
			}
		case <-timer.C:
		case <-waiting.Done():
			timer.Stop()
		}
		if waiting.Err() != nil {
			s.seats.pass(at)
			return nil, context.Cause(waiting)
		}
		if w, err := s.try(waiting, at, t); w != nil || err != nil {
			return w, err
		}
	}
}

// try takes the lock if it is free. If not, the caller has the seat still.
func (s *Session) try(ctx context.Context, at *seat, t *taking) (*wire, error) {
	op := opTry
	if t.shared {
		op = opTryShared
	}
	for attempt := 1; ; attempt++ {
		w, err := s.wire(ctx)
		if err != nil {
			s.seats.pass(at)
			return nil, err
		}
		coming := w.ask(&ask{op: op, key: at.key})
		var a answer
		select {
		case a = <-coming:
		case <-ctx.Done():
			s.background(func() { // it may be granted yet
				if a := <-coming; a.ok {
					w.do(op+opUnlock, at.key)
				}
				s.seats.pass(at)
			})
			return nil, context.Cause(ctx)
		}
		switch {
		case a.ok:
			s.seats.granted(at, w, t.shared, nil)
			return w, nil
		case a.err == nil:
			return nil, nil
		case w.cause() == nil || attempt == attempts || ctx.Err() != nil:
			s.seats.pass(at)
			return nil, a.err
		}
	}
}

// block waits for the lock in a session for that; the caller has taken its slot. nil
// and no error mean that the time is over.
func (s *Session) block(ctx context.Context, at *seat, t *taking) (*wire, error) {
	w, err := s.waiter(ctx)
	if err != nil {
		<-s.slots
		return nil, err
	}
	free := sync.OnceFunc(func() {
		s.mu.Lock()
		if w.cause() == nil {
			s.idle = append(s.idle, w)
		}
		s.mu.Unlock()
		<-s.slots
	})
	coming := w.ask(&ask{op: opWait, key: at.key, taking: t})
	select {
	case a := <-coming:
		if a.ok {
			s.seats.granted(at, w, t.shared, free)
			return w, nil
		}
		free()
		return nil, a.err
	case <-ctx.Done():
		// It may be granted in this moment, so the session is ended.
		w.cut(errAbandoned)
		s.background(func() {
			<-w.ended
			free()
		})
		return nil, context.Cause(ctx)
	}
}

// waiter returns a session to wait in.
func (s *Session) waiter(ctx context.Context) (*wire, error) {
	s.mu.Lock()
	s.idle = slices.DeleteFunc(s.idle, func(w *wire) bool { return w.cause() != nil })
	if n := len(s.idle); n > 0 {
		w := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return w, nil
	}
	s.mu.Unlock()
	w, err := s.dial(ctx)
	if err != nil && ctx.Err() == nil && s.life.Err() == nil {
		err = fmt.Errorf("%w: %w", errNoWire, err)
	}
	return w, err
}

// wire returns the session that most locks are in. If it has ended, it is another one.
func (s *Session) wire(ctx context.Context) (*wire, error) {
	if w := s.living(); w != nil {
		return w, nil
	}
	select {
	case s.dials <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.dials }()
	if w := s.living(); w != nil {
		return w, nil
	}
	w, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.main = w
	return w, nil
}

// living returns the session that most locks are in, or nil if it has ended.
func (s *Session) living() *wire {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.main != nil && s.main.cause() == nil {
		return s.main
	}
	return nil
}

// dial begins a session.
func (s *Session) dial(ctx context.Context) (*wire, error) {
	dialing, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	conn, err := pgx.ConnectConfig(dialing, s.config)
	if err == nil {
		if err = prepareSession(dialing, conn); err != nil {
			_ = conn.Close(dialing)
		}
	}
	switch {
	case s.life.Err() != nil:
		err = context.Cause(s.life)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err != nil && !errors.Is(err, ErrPooler):
		err = fmt.Errorf("%w: connecting: %w", ErrServer, err)
	}
	if err != nil {
		if conn != nil {
			_ = conn.Close(dialing)
		}
		return nil, err
	}
	w := newWire(conn, s.heartbeat)
	run := func() {
		w.run()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, w)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if cause := context.Cause(s.life); cause != nil {
		_ = conn.Close(dialing)
		return nil, cause
	}
	s.all[w] = struct{}{}
	s.wires.Go(run)
	return w, nil
}

// prepareSession sets a session up, if it is one.
func prepareSession(ctx context.Context, conn *pgx.Conn) error {
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
		return err
	}
	if pid != conn.PgConn().PID() {
		return fmt.Errorf("%w; connect to the server itself, or use LockTx", ErrPooler)
	}
	_, err := conn.Exec(ctx, sessionSQL, pgx.QueryExecModeSimpleProtocol)
	return err
}

// background runs what is to be done before Close returns.
func (s *Session) background(f func()) {
	s.mu.Lock()
	if s.life.Err() == nil {
		s.wires.Go(f)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	f()
}

var (
	errAbandoned = errors.New("sqllock: whoever waited gave up")
	errNoWire    = errors.New("sqllock: no session to wait in")
)
