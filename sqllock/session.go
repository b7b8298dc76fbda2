package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// functions calls a database's functions for locks of a session.
type functions[T comparable] interface {
	name(target T) string
	// take takes one lock. false: the lock is held elsewhere, and the session has
	// nothing. After an error the state of the session is unknown.
	take(ctx context.Context, conn *sql.Conn, target T, t *request) (bool, error)
	// drop releases one lock. An error means that the session did not have it, or that
	// this is unknown.
	drop(ctx context.Context, conn *sql.Conn, target T, shared bool) error
	// watch returns nil when the context ends, or earlier the reason why the session
	// ended.
	watch(ctx context.Context, conn *sql.Conn) error
	// beat returns nil if the session still has the lock.
	beat(ctx context.Context, conn *sql.Conn, target T) error
}

// sessions takes locks that have a connection of the pool each.
type sessions[T comparable] struct {
	db        *sql.DB
	functions functions[T]
	heartbeat time.Duration
	queues    localQueues[T]
	observe   Observer // or nil
}

// lock takes all targets on one session, or none.
func (p *sessions[T]) lock(ctx context.Context, targets []T, t request) (*Lock, error) {
	// A connection of the pool may be dead: then another one is tried.
	for try := 0; ; try++ {
		l, err := p.try(ctx, targets, &t)
		if !errors.Is(err, driver.ErrBadConn) || try == 2 {
			if err != nil {
				p.tell(ctx, dibs.Event{Kind: dibs.EventRefused, Waited: time.Since(t.since), Err: err}.WithKey(dibs.Key{Name: p.names(targets)}))
			}
			return l, err
		}
	}
}

// try is lock on one connection.
func (p *sessions[T]) try(ctx context.Context, targets []T, t *request) (*Lock, error) {
	// The turn comes first, because waiting for it needs no connection.
	leave, err := p.turn(ctx, targets[0], t)
	if err != nil {
		return nil, err
	}
	defer func() { leave() }()
	connecting, cancel := ctx, context.CancelFunc(func() {})
	if t.wait > 0 {
		connecting, cancel = context.WithDeadline(ctx, t.since.Add(max(t.wait, connectLimit)))
	}
	conn, err := p.db.Conn(connecting)
	cancel()
	if err != nil {
		if ctx.Err() != nil {
			return nil, t.ended(ctx, p.functions.name(targets[0]))
		}
		return nil, fmt.Errorf("%w: no connection of the pool in time (raise SetMaxOpenConns above the number of locks): %w", ErrServer, err)
	}
	// A driver may panic.
	keep := false
	defer func() {
		if !keep {
			discard(conn)
		}
	}()
	for i, target := range targets {
		if i > 0 {
			// Keeping this turn while waiting for the next lock could be half of a
			// deadlock inside this process.
			leave()
			if leave, err = p.turn(ctx, target, t); err != nil {
				keep = p.drop(ctx, conn, targets[:i], t.shared) == nil && conn.Close() == nil
				return nil, err
			}
		}
		got, err := p.functions.take(ctx, conn, target, t)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, t.ended(ctx, p.functions.name(target))
		case err != nil && (errors.Is(err, ErrPooler) || errors.Is(err, ErrDeadlock)):
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("%w: %s: %w", ErrServer, p.functions.name(target), err)
		case !got:
			keep = p.drop(ctx, conn, targets[:i], t.shared) == nil && conn.Close() == nil
			return nil, t.held(p.functions.name(target))
		}
	}
	keep = true
	return p.hold(ctx, conn, targets, t), nil
}

// turn waits for the caller's turn to ask for a target; try skips it.
func (p *sessions[T]) turn(ctx context.Context, target T, t *request) (leave func(), err error) {
	if t.try {
		return func() {}, nil
	}
	waiting, cancel := t.limit(ctx)
	defer cancel()
	if err := p.queues.enter(waiting, target); err != nil {
		return func() {}, t.ended(waiting, p.functions.name(target))
	}
	return func() { p.queues.leave(target) }, nil
}

// drop releases locks, the last one first.
func (p *sessions[T]) drop(ctx context.Context, conn *sql.Conn, targets []T, shared bool) error {
	for i := len(targets) - 1; i >= 0; i-- {
		if err := p.functions.drop(ctx, conn, targets[i], shared); err != nil {
			return err
		}
	}
	return nil
}

// hold returns the lock that a session has, and watches the session.
func (p *sessions[T]) hold(ctx context.Context, conn *sql.Conn, targets []T, t *request) *Lock {
	watching, stop := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	var ended error // set when the watch is over
	release := func(ctx context.Context) error {
		stop()
		watch.Wait()
		if ended != nil {
			return ended
		}
		if err := p.drop(ctx, conn, targets, t.shared); err != nil {
			discard(conn)
			return err
		}
		return conn.Close()
	}
	l := newLock(ctx, p.names(targets), release)
	event := dibs.Event{Kind: dibs.EventAcquired, Waited: time.Since(t.since)}.WithKey(dibs.Key{Name: l.name})
	granted := time.Now()
	l.observe = func(kind dibs.EventKind, settled time.Duration, err error) {
		event.Kind, event.Held, event.Settled, event.Err = kind, time.Since(granted), settled, err
		p.tell(ctx, event)
	}
	p.tell(ctx, event)
	watch.Go(func() {
		ended = p.watch(watching, conn, targets)
		if ended != nil {
			l.lose(ended) // before the session ends, because then another one gets the lock
			discard(conn)
			stop()
		}
	})
	return l
}

// tell calls observe.
func (p *sessions[T]) tell(ctx context.Context, e dibs.Event) {
	if p.observe != nil {
		p.observe(ctx, e)
	}
}

// names returns the name of a lock of all targets.
func (p *sessions[T]) names(targets []T) string {
	names := make([]string, len(targets))
	for i, target := range targets {
		names[i] = p.functions.name(target)
	}
	return strings.Join(names, " and ")
}

// watch returns nil when the context ends, or earlier the reason why the session ended.
func (p *sessions[T]) watch(ctx context.Context, conn *sql.Conn, targets []T) error {
	for i := 0; ; i++ {
		quiet, cancel := context.WithTimeout(ctx, p.heartbeat)
		err := p.functions.watch(quiet, conn)
		cancel()
		if err != nil || ctx.Err() != nil {
			return err
		}
		// The end of the watch must not interrupt a statement, because that would end
		// the session.
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
		err = p.functions.beat(asking, conn, targets[i%len(targets)])
		cancel()
		if err != nil {
			return err
		}
	}
}

// discard ends the session, so that the pool does not use it again.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}
