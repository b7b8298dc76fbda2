package sqllock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/product"
)

// Named takes named locks of MySQL or MariaDB (GET_LOCK). Each lock has a connection of
// the pool from Lock to Unlock, and each name that callers wait for has one more. Give
// the pool more connections than that, because the code under the lock needs some, too.
// Its methods are safe for concurrent use.
type Named struct {
	sessions sessions[string]
	db       *sql.DB
	schema   string
}

// NamedOptions configures a Named. nil and the zero value mean the defaults.
type NamedOptions struct {
	// Schema separates the names of applications on one server, because names of locks
	// belong to the whole server. "": the database of the pool's connections. Processes
	// that exclude each other need the same Schema.
	Schema string
	// Heartbeat is how often the session of a held lock is checked. 0: 1 s; at least 10
	// ms. It is also how soon the end of a session is noticed. A session that does not
	// answer within 4 s counts as ended.
	Heartbeat time.Duration
	// Observe is called when a lock was taken or refused, and when it ended. Default: none.
	Observe Observer
}

// NewNamed returns a Named on the pool. The caller closes the pool. It returns ErrServer
// when the server cannot be asked, and ErrLocal on a product whose named locks do not exclude all
// others (docs/reference/databases.md), such as a Galera cluster, in which each node has locks of its own.
func NewNamed(ctx context.Context, db *sql.DB, o *NamedOptions) (*Named, error) {
	if o == nil {
		o = &NamedOptions{}
	}
	heartbeat, err := heartbeatOf("NamedOptions", o.Heartbeat, time.Second)
	if err != nil {
		return nil, err
	}
	if err := refuseLocal(ctx, db, product.MySQL); err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, 2*answerLimit)
	defer cancel()
	var schema sql.NullString
	var version string
	var folds int
	query := "SELECT DATABASE(), VERSION(), @@lower_case_table_names"
	if err := db.QueryRowContext(asking, query).Scan(&schema, &version, &folds); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrServer, err)
	}
	if folds != 0 { // the server folds database names
		schema.String = strings.ToLower(schema.String)
	}
	functions := &namedFunctions{db: db, maria: strings.Contains(strings.ToLower(version), "mariadb")}
	return &Named{
		db: db, schema: cmp.Or(o.Schema, schema.String),
		sessions: sessions[string]{db: db, functions: functions, heartbeat: heartbeat, observe: o.Observe},
	}, nil
}

// Lock waits for the lock of a name and takes it. The name may be any bytes. In this
// process, callers that wait for a name are served in their order. nil options mean the
// defaults; Shared is an error.
//
// Take the lock before the transaction that it protects. At MySQL's default level,
// repeatable read, a transaction that has read earlier does not see what the last holder
// committed.
//
// It returns dibs.ErrHeld when LockOptions.Wait is over, ErrServer, or the context's
// cause. After an error the caller holds nothing. A caller that takes a name twice waits
// for itself. Two callers that take two names in different orders wait for each other,
// and the server does not see it, because each lock has its own session. Use one order
// everywhere, or LockAll.
//
// MariaDB waits for any time. MySQL waits for whole seconds, so a Wait is rounded up to them.
func (n *Named) Lock(ctx context.Context, name string, o *LockOptions) (*Lock, error) {
	return n.lock(ctx, []string{name}, o, false)
}

// TryLock is Lock without the wait: it returns dibs.ErrHeld when the lock is held.
func (n *Named) TryLock(ctx context.Context, name string, o *LockOptions) (*Lock, error) {
	return n.lock(ctx, []string{name}, o, true)
}

// LockAll takes several locks on one session, all or none. It sorts the names, so two
// calls never wait for each other in a circle. Duplicate names count once. It returns the
// errors of Lock, and ErrDeadlock when a caller that uses another order waits, too.
func (n *Named) LockAll(ctx context.Context, names []string, o *LockOptions) (*Lock, error) {
	return n.lock(ctx, names, o, false)
}

// Do runs fn under the lock, and unlocks when fn returns, panics or calls runtime.Goexit.
// fn's context ends when the lock is lost; then Do returns dibs.ErrLost, joined to fn's
// error. If the lock cannot be taken, Do returns the error of Lock.
func (n *Named) Do(ctx context.Context, name string, o *LockOptions, fn func(context.Context) error) error {
	return under("Named.Do", fn, func() (*Lock, error) { return n.Lock(ctx, name, o) })
}

// TryDo is Do without the wait: it returns dibs.ErrHeld when the lock is held.
func (n *Named) TryDo(ctx context.Context, name string, o *LockOptions, fn func(context.Context) error) error {
	return under("Named.TryDo", fn, func() (*Lock, error) { return n.TryLock(ctx, name, o) })
}

// Held reports whether a session has the lock. It takes no lock and does not wait. The
// answer may be old on arrival.
func (n *Named) Held(ctx context.Context, name string) (bool, error) {
	var held bool
	err := n.db.QueryRowContext(ctx, "SELECT IS_USED_LOCK('"+n.Name(name)+"') IS NOT NULL").Scan(&held)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrServer, err)
	}
	return held, nil
}

// Name returns the lock's name on the server, for SQL that takes the same lock: "dibs-"
// and, in base 32, lower case, without padding, the SHA-256 of "dibs named 1", the
// schema's length as 8 bytes big-endian, the schema and the name. It has 57 characters.
// So the server never folds, trims or refuses a name, and no two names share a lock.
func (n *Named) Name(name string) string { return lockName(n.schema, name) }

func lockName(schema, name string) string {
	h := sha256.New()
	h.Write([]byte("dibs named 1"))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(schema))))
	h.Write([]byte(schema))
	h.Write([]byte(name))
	return "dibs-" + lowerBase32.EncodeToString(h.Sum(nil))
}

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func (n *Named) lock(ctx context.Context, names []string, o *LockOptions, try bool) (*Lock, error) {
	t, err := o.begin(try)
	switch {
	case err != nil:
		return nil, err
	case t.shared:
		return nil, errors.New("sqllock: LockOptions.Shared is set; named locks are always exclusive; for a shared lock use a row: SELECT … FOR SHARE")
	case len(names) == 0:
		return nil, errNoKeys
	}
	targets := make([]string, len(names))
	for i, name := range names {
		targets[i] = n.Name(name)
	}
	slices.Sort(targets)
	return n.sessions.lock(ctx, slices.Compact(targets), t)
}
