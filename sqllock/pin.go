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
)

// speaker is how a database is asked for locks that belong to a session.
type speaker[T comparable] interface {
	name(target T) string
	// take takes one lock. false means that others have it, and that nothing is left
	// behind in the session. After an error anything may be.
	take(ctx context.Context, conn *sql.Conn, target T, t *taking) (bool, error)
	// drop gives one lock up. An error means that the session did not have it, or
	// that nobody knows.
	drop(ctx context.Context, conn *sql.Conn, target T, shared bool) error
	// watch returns nil when the context ends, and before that only if the session
	// has: then it says why.
	watch(ctx context.Context, conn *sql.Conn) error
	// beat returns nil if the session still has the lock.
	beat(ctx context.Context, conn *sql.Conn, target T) error
}

// pins takes locks that have a session of a pool each, for as long as they are held.
type pins[T comparable] struct {
	db        *sql.DB
	speaker   speaker[T]
	heartbeat time.Duration
	turns     turns[T]
}

// lock takes all targets on one session, or none.
func (p *pins[T]) lock(ctx context.Context, targets []T, t taking) (*Lock, error) {
	// A connection of the pool may have died unnoticed: then another will do.
	for attempt := 0; ; attempt++ {
		l, err := p.attempt(ctx, targets, &t)
		if !errors.Is(err, driver.ErrBadConn) || attempt == 2 {
			return l, err
		}
	}
}

// attempt is lock on one session of the pool.
func (p *pins[T]) attempt(ctx context.Context, targets []T, t *taking) (*Lock, error) {
	// The turn first: who waits for it needs no connection.
	leave, err := p.turn(ctx, targets[0], t)
	if err != nil {
		return nil, err
	}
	defer func() { leave() }()
	connecting, cancel := ctx, context.CancelFunc(func() {})
	if t.wait > 0 {
		// A second is for the connection, however short the wait for the lock.
		connecting, cancel = context.WithDeadline(ctx, t.since.Add(max(t.wait, time.Second)))
	}
	conn, err := p.db.Conn(connecting)
	cancel()
	if err != nil {
		if ctx.Err() != nil {
			return nil, t.ended(ctx, p.speaker.name(targets[0]))
		}
		return nil, fmt.Errorf("%w: the pool has no connection in time (SetMaxOpenConns: it needs more than there are locks at once): %w", ErrServer, err)
	}
	// Also if a driver panics.
	keep := false
	defer func() {
		if !keep {
			discard(conn)
		}
	}()
	for i, target := range targets {
		if i > 0 {
			// The turn of one that is not taken yet would keep those out who have what
			// comes before, and they would wait for one another.
			leave()
			if leave, err = p.turn(ctx, target, t); err != nil {
				keep = p.drop(ctx, conn, targets[:i], t.shared) == nil && conn.Close() == nil
				return nil, err
			}
		}
		got, err := p.speaker.take(ctx, conn, target, t)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, t.ended(ctx, p.speaker.name(target))
		case err != nil && (errors.Is(err, ErrPooler) || errors.Is(err, ErrDeadlock)):
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("%w: %s: %w", ErrServer, p.speaker.name(target), err)
		case !got:
			keep = p.drop(ctx, conn, targets[:i], t.shared) == nil && conn.Close() == nil
			return nil, t.held(p.speaker.name(target))
		}
	}
	keep = true
	return p.hold(ctx, conn, targets, t.shared), nil
}

// turn waits for the turn to ask for a target, unless it is to try only. leave ends it.
func (p *pins[T]) turn(ctx context.Context, target T, t *taking) (leave func(), err error) {
	if t.try {
		return func() {}, nil
	}
	waiting, cancel := t.limit(ctx)
	defer cancel()
	if err := p.turns.enter(waiting, target); err != nil {
		return func() {}, t.ended(waiting, p.speaker.name(target))
	}
	return func() { p.turns.leave(target) }, nil
}

// drop gives locks up; what was taken last first.
func (p *pins[T]) drop(ctx context.Context, conn *sql.Conn, targets []T, shared bool) error {
	for i := len(targets) - 1; i >= 0; i-- {
		if err := p.speaker.drop(ctx, conn, targets[i], shared); err != nil {
			return err
		}
	}
	return nil
}

// hold returns the lock that a session has, and watches over it.
func (p *pins[T]) hold(ctx context.Context, conn *sql.Conn, targets []T, shared bool) *Lock {
	watching, stop := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	var gone error // when the watch is over
	release := func(ctx context.Context) error {
		stop()
		watch.Wait()
		if gone != nil {
			return gone
		}
		if err := p.drop(ctx, conn, targets, shared); err != nil {
			discard(conn)
			return err
		}
		return conn.Close()
	}
	names := make([]string, len(targets))
	for i, target := range targets {
		names[i] = p.speaker.name(target)
	}
	l := newLock(ctx, strings.Join(names, " and "), release)
	watch.Go(func() {
		gone = p.watch(watching, conn, targets)
		if gone != nil {
			l.lose(gone) // before the session ends, and somebody else gets the lock
			discard(conn)
			stop()
		}
	})
	return l
}

// watch returns nil when the context ends, or else why the session ended before.
func (p *pins[T]) watch(ctx context.Context, conn *sql.Conn, targets []T) error {
	for i := 0; ; i++ {
		quiet, cancel := context.WithTimeout(ctx, p.heartbeat)
		err := p.speaker.watch(quiet, conn)
		cancel()
		if err != nil || ctx.Err() != nil {
			return err
		}
		// Not the context that ends the watch: to interrupt a question ends the session.
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
		err = p.speaker.beat(asking, conn, targets[i%len(targets)])
		cancel()
		if err != nil {
			return err
		}
	}
}

// discard ends the session: the pool must not hand it on.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}
