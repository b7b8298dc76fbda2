package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/product"
)

// Advisory takes PostgreSQL's advisory locks. Each lock has a connection of the pool from
// Lock to Unlock, and each key that callers wait for has one more. Give the pool more
// connections than that, because the code under the lock needs some, too. For locks that
// last as long as a transaction, see LockTx. A lease of a pgstore needs no connection.
//
// It works with every database/sql driver for PostgreSQL. Its methods are safe for
// concurrent use.
type Advisory struct {
	sessions sessions[AdvisoryKey]
	db       *sql.DB
}

// AdvisoryOptions configures an Advisory. nil and the zero value mean the defaults.
type AdvisoryOptions struct {
	// Heartbeat is how often the session of a held lock is checked. 0: 1 s; at least 10
	// ms. A session that does not answer within 4 s counts as ended. With pgx's driver
	// the end of a session is noticed at once, and the heartbeat finds cut networks.
	Heartbeat time.Duration
	// SessionPooler says that each connection keeps its session: there is no pooler, or it
	// leaves each client its session (PgBouncer's pool_mode=session). Then nothing is checked.
	// Required with drivers other than pgx's. Default: false.
	SessionPooler bool
	// Observe is called when a lock was taken or refused, and when it ended. Default: none.
	Observe Observer
}

// NewAdvisory returns an Advisory on the pool. The caller closes the pool. It returns
// ErrPooler when a pooler gives each transaction another session, and ErrServer when the
// server cannot be asked. It returns ErrLocal on a product whose advisory locks do not exclude all
// others (docs/reference/databases.md), such as CockroachDB, on which they do nothing.
//
// The number of the session shows the pooler, and every Lock checks it again. Only pgx's driver
// tells that number. With other drivers NewAdvisory returns ErrPooler, unless SessionPooler is set.
func NewAdvisory(ctx context.Context, db *sql.DB, o *AdvisoryOptions) (*Advisory, error) {
	if o == nil {
		o = &AdvisoryOptions{}
	}
	heartbeat, err := heartbeatOf("AdvisoryOptions", o.Heartbeat, time.Second)
	if err != nil {
		return nil, err
	}
	if err := refuseLocal(ctx, db, product.PostgreSQL); err != nil {
		return nil, err
	}
	if !o.SessionPooler {
		if err := refusePooler(ctx, db); err != nil {
			return nil, err
		}
	}
	functions := &advisoryFunctions{unchecked: o.SessionPooler}
	return &Advisory{db: db, sessions: sessions[AdvisoryKey]{db: db, functions: functions, heartbeat: heartbeat, observe: o.Observe}}, nil
}

func heartbeatOf(options string, d, usual time.Duration) (time.Duration, error) {
	if d != 0 && d < 10*time.Millisecond {
		return 0, fmt.Errorf("sqllock: %s.Heartbeat is %v; it must be at least 10ms, or 0 for %v", options, d, usual)
	}
	return cmp.Or(d, usual), nil
}

// Lock waits for the lock and takes it. nil options mean the defaults. In this process,
// callers that wait for a key are served in their order. Among processes the order is
// that of the server's queue. Each process joins that queue again every second, so waits
// of more than a second have no order among processes.
//
// A wait is never a statement of more than a second, so it does not block CREATE INDEX
// CONCURRENTLY. The server logs an error (55P03) for each of these seconds.
//
// Take the lock before the transaction that it protects. At repeatable read or
// serializable, a transaction that began earlier does not see what the last holder
// committed.
//
// It returns dibs.ErrHeld when LockOptions.Wait is over, ErrPooler, ErrServer, or the
// context's cause. After an error the caller holds nothing. A caller that takes a key
// twice waits for itself. Two callers that take two keys in different orders wait for
// each other, and the server does not see it, because each lock has its own session. Use
// one order everywhere, or LockAll.
func (a *Advisory) Lock(ctx context.Context, key AdvisoryKey, o *LockOptions) (*Lock, error) {
	return a.lock(ctx, []AdvisoryKey{key}, o, false)
}

// TryLock is Lock without the wait: it returns dibs.ErrHeld when the lock is held.
func (a *Advisory) TryLock(ctx context.Context, key AdvisoryKey, o *LockOptions) (*Lock, error) {
	return a.lock(ctx, []AdvisoryKey{key}, o, true)
}

// LockAll takes several locks on one session, all or none. It sorts the keys, so two
// calls never wait for each other in a circle. Duplicate keys count once. It returns the
// errors of Lock, and ErrDeadlock when a caller that uses another order waits, too. The
// server finds that only if its deadlock_timeout is at most 1 s, the default.
func (a *Advisory) LockAll(ctx context.Context, keys []AdvisoryKey, o *LockOptions) (*Lock, error) {
	return a.lock(ctx, keys, o, false)
}

// Do runs fn under the lock, and unlocks when fn returns, panics or calls runtime.Goexit.
// fn's context ends when the lock is lost; then Do returns dibs.ErrLost, joined to fn's
// error. If the lock cannot be taken, Do returns the error of Lock.
func (a *Advisory) Do(ctx context.Context, key AdvisoryKey, o *LockOptions, fn func(context.Context) error) error {
	return under("Advisory.Do", fn, func() (*Lock, error) { return a.Lock(ctx, key, o) })
}

// TryDo is Do without the wait: it returns dibs.ErrHeld when the lock is held.
func (a *Advisory) TryDo(ctx context.Context, key AdvisoryKey, o *LockOptions, fn func(context.Context) error) error {
	return under("Advisory.TryDo", fn, func() (*Lock, error) { return a.TryLock(ctx, key, o) })
}

// Held reports whether a session or a transaction has the lock, shared or not. It takes
// no lock and does not wait. The answer may be old on arrival.
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
	return a.sessions.lock(ctx, slices.Compact(keys), t)
}
