package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// Advisory takes advisory locks of PostgreSQL that have a session each: a connection
// of the pool, from Lock to Unlock, and one for the waiting for each key. Give the pool
// more connections than locks are held and waited for at once: what the lock guards
// needs some too. For the locks of a transaction see LockTx. A lease of a pgstore needs
// no connection, however many are held, and does more.
//
// It works with every driver of database/sql for PostgreSQL. Its methods are safe for
// concurrent use.
type Advisory struct {
	pins pins[AdvisoryKey]
	db   *sql.DB
}

// AdvisoryOptions says how advisory locks are taken. nil and the zero value mean the
// defaults.
type AdvisoryOptions struct {
	// Heartbeat is how often the session of a lock is asked whether it lives; 0: 1 s,
	// at least 10 ms. A session that does not answer within 4 s counts as ended. With
	// pgx's driver the end of one is noticed at once; the heartbeat is for cut networks.
	Heartbeat time.Duration
	// SessionPooler says that the pooler before the server, if there is one, leaves each
	// client its session (PgBouncer's pool_mode=session): then none is refused.
	SessionPooler bool
}

// NewAdvisory returns an Advisory on the pool, which remains the caller's to close. It
// looks at the server, on a few connections of the pool, and returns ErrPooler when
// there is a pooler in between that gives each transaction another session, and
// ErrServer when the server cannot be asked.
//
// With pgx's driver a pooler is told by the number of the session, again each time a
// lock is taken. Other drivers do not tell that number: there up to three sessions are
// ended, and if one goes on it was a pooler's.
func NewAdvisory(ctx context.Context, db *sql.DB, o *AdvisoryOptions) (*Advisory, error) {
	if o == nil {
		o = &AdvisoryOptions{}
	}
	heartbeat, err := heartbeatOf("AdvisoryOptions", o.Heartbeat, time.Second)
	if err != nil {
		return nil, err
	}
	if !o.SessionPooler {
		if err := refusePooler(ctx, db); err != nil {
			return nil, err
		}
	}
	speaker := &advisorySpeaker{unchecked: o.SessionPooler}
	return &Advisory{db: db, pins: pins[AdvisoryKey]{db: db, speaker: speaker, heartbeat: heartbeat}}, nil
}

// heartbeatOf validates a heartbeat.
func heartbeatOf(options string, d, usual time.Duration) (time.Duration, error) {
	if d != 0 && d < 10*time.Millisecond {
		return 0, fmt.Errorf("sqllock: %s.Heartbeat is %v; it must be at least 10ms, or 0 for %v", options, d, usual)
	}
	return cmp.Or(d, usual), nil
}

// Lock waits for the lock and takes it. In this process, callers that wait for a key
// come in their order. Among processes they come in the order in which the server was
// asked. Each process asks once a second and is the last in the server's line then, so
// there is no order among processes that wait for longer. nil options mean the defaults.
//
// A caller that waits is no statement in progress for longer than a second, so it does
// not hold up CREATE INDEX CONCURRENTLY. In a transaction of its own, it would. The server
// logs an error (55P03) for each of these seconds, as it does for all errors.
//
// Take it before the transaction begins that it guards, or that does not see what the
// holder before it committed, if it is at repeatable read or serializable.
//
// It returns dibs.ErrHeld when LockOptions.Wait is over, ErrPooler, ErrServer, and the
// context's cause when that ends. Then nothing is left behind: a session in which
// something might be is ended. A key inside itself would wait for ever; so would two
// that wait for one another's locks, and the server does not see it, because each lock
// has a session of its own: take them in the same order everywhere, or with LockAll.
func (a *Advisory) Lock(ctx context.Context, key AdvisoryKey, o *LockOptions) (*Lock, error) {
	return a.lock(ctx, []AdvisoryKey{key}, o, false)
}

// TryLock is Lock for those who would rather not wait: it returns dibs.ErrHeld when
// others have the lock.
func (a *Advisory) TryLock(ctx context.Context, key AdvisoryKey, o *LockOptions) (*Lock, error) {
	return a.lock(ctx, []AdvisoryKey{key}, o, true)
}

// LockAll takes several locks on one session, all or none, and whatever the order in
// which they are given in one that keeps two such calls from waiting for one another.
// Keys that are given twice count once. It returns what Lock returns, and ErrDeadlock
// when somebody who takes them in another order waits for it, too: if the server's
// deadlock_timeout is not above the usual second.
func (a *Advisory) LockAll(ctx context.Context, keys []AdvisoryKey, o *LockOptions) (*Lock, error) {
	return a.lock(ctx, keys, o, false)
}

// Do runs fn with the lock, and unlocks when it returns, panics or calls
// runtime.Goexit. fn's context ends when the lock is lost; then Do returns
// dibs.ErrLost, joined to what fn returned. Before fn has begun it returns what Lock
// returns.
func (a *Advisory) Do(ctx context.Context, key AdvisoryKey, o *LockOptions, fn func(context.Context) error) error {
	l, err := a.Lock(ctx, key, o)
	if err != nil {
		return err
	}
	return l.run(fn)
}

// TryDo is Do for those who would rather not wait: it returns dibs.ErrHeld when others
// have the lock.
func (a *Advisory) TryDo(ctx context.Context, key AdvisoryKey, o *LockOptions, fn func(context.Context) error) error {
	l, err := a.TryLock(ctx, key, o)
	if err != nil {
		return err
	}
	return l.run(fn)
}

// Held reports whether anybody has the lock, of a session or of a transaction, shared
// or not. It takes nothing and waits for nobody. The answer may be old when it comes.
func (a *Advisory) Held(ctx context.Context, key AdvisoryKey) (bool, error) {
	class, object, sub := key.inLocks()
	var held bool
	err := a.db.QueryRowContext(ctx, heldSQL, class, object, sub).Scan(&held)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrServer, err)
	}
	return held, nil
}

func (a *Advisory) lock(ctx context.Context, keys []AdvisoryKey, o *LockOptions, try bool) (*Lock, error) {
	t, err := o.begin(try)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errNoKeys
	}
	keys = slices.Clone(keys)
	slices.SortFunc(keys, func(a, b AdvisoryKey) int {
		if a.pair != b.pair {
			return map[bool]int{false: -1, true: 1}[a.pair]
		}
		return cmp.Compare(a.bits, b.bits)
	})
	return a.pins.lock(ctx, slices.Compact(keys), t)
}
