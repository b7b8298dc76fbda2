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
)

// Named takes named locks of MySQL or MariaDB (GET_LOCK) that have a session each: a
// connection of the pool, from Lock to Unlock, and one for the waiting for each name.
// Give the pool more connections than locks are held and waited for at once: what the
// lock guards needs some too. Its methods are safe for concurrent use.
type Named struct {
	pins   pins[string]
	db     *sql.DB
	schema string
}

// NamedOptions says how named locks are taken. nil and the zero value mean the
// defaults.
type NamedOptions struct {
	// Schema keeps the names of two applications on one server apart, which knows one
	// name only once: "" is the database that the pool is connected to. All who are to
	// exclude one another need the same.
	Schema string
	// Heartbeat is how often the session of a lock is asked whether it has it still; 0:
	// 1 s, at least 10 ms. A session that does not answer within 4 s counts as ended.
	// The end of one is noticed as soon as that.
	Heartbeat time.Duration
}

// NewNamed returns a Named on the pool, which remains the caller's to close. It asks
// the server a question, and returns ErrServer when that cannot be asked.
func NewNamed(ctx context.Context, db *sql.DB, o *NamedOptions) (*Named, error) {
	if o == nil {
		o = &NamedOptions{}
	}
	heartbeat, err := heartbeatOf("NamedOptions", o.Heartbeat, time.Second)
	if err != nil {
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
	if folds != 0 { // the server finds the database under either name
		schema.String = strings.ToLower(schema.String)
	}
	speaker := &namedSpeaker{db: db, maria: strings.Contains(strings.ToLower(version), "mariadb")}
	return &Named{
		db: db, schema: cmp.Or(o.Schema, schema.String),
		pins: pins[string]{db: db, speaker: speaker, heartbeat: heartbeat},
	}, nil
}

// Lock waits for the lock of a name, of any bytes, and takes it. In this process, those
// who wait for a name come in their order. nil options mean the defaults; Shared is an
// error. Take it before the transaction begins that it guards: what that has read once
// at MySQL's default level, repeatable read, shows what was so then, and not what the
// holder before it committed.
//
// It returns dibs.ErrHeld when LockOptions.Wait is over, ErrServer, and the context's
// cause when that ends. Then nothing is left behind: a session in which something
// might be is ended. A name inside itself would wait for ever; so would two that wait
// for one another's locks, and the server does not see it, because each lock has a
// session of its own: take them in the same order everywhere, or with LockAll.
//
// Waits are as exact as the server's: MariaDB waits for any time. MySQL waits for whole
// seconds only, so what is more than those is waited by asking again, up to 50 times a
// second: there, whoever waits for whole seconds comes first.
func (n *Named) Lock(ctx context.Context, name string, o *LockOptions) (*Lock, error) {
	return n.lock(ctx, []string{name}, o, false)
}

// TryLock is Lock for those who would rather not wait: it returns dibs.ErrHeld when
// others have the lock.
func (n *Named) TryLock(ctx context.Context, name string, o *LockOptions) (*Lock, error) {
	return n.lock(ctx, []string{name}, o, true)
}

// LockAll takes several locks on one session, all or none, and whatever the order in
// which they are given in one that keeps two such calls from waiting for one another.
// Names that are given twice count once. It returns what Lock returns, and ErrDeadlock
// when somebody who takes them in another order waits for it, too.
func (n *Named) LockAll(ctx context.Context, names []string, o *LockOptions) (*Lock, error) {
	return n.lock(ctx, names, o, false)
}

// Do runs fn with the lock, and unlocks when it returns, panics or calls
// runtime.Goexit. fn's context ends when the lock is lost; then Do returns
// dibs.ErrLost, joined to what fn returned. Before fn has begun it returns what Lock
// returns.
func (n *Named) Do(ctx context.Context, name string, o *LockOptions, fn func(context.Context) error) error {
	l, err := n.Lock(ctx, name, o)
	if err != nil {
		return err
	}
	return l.run(fn)
}

// TryDo is Do for those who would rather not wait: it returns dibs.ErrHeld when others
// have the lock.
func (n *Named) TryDo(ctx context.Context, name string, o *LockOptions, fn func(context.Context) error) error {
	l, err := n.TryLock(ctx, name, o)
	if err != nil {
		return err
	}
	return l.run(fn)
}

// Held reports whether anybody has the lock. It takes nothing and waits for nobody.
// The answer may be old when it comes.
func (n *Named) Held(ctx context.Context, name string) (bool, error) {
	var held bool
	err := n.db.QueryRowContext(ctx, "SELECT IS_USED_LOCK('"+n.Name(name)+"') IS NOT NULL").Scan(&held)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrServer, err)
	}
	return held, nil
}

// Name returns the name that the server knows the lock of a name by, for those who
// take it by hand: "dibs-" and, in base 32, lower case and without padding, the
// SHA-256 of "dibs named 1", the schema's length as 8 bytes big-endian, the schema and
// the name. It has 57 characters. So no name is folded, trimmed or too long, and two
// names never have the same lock.
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
		return nil, errors.New("sqllock: LockOptions.Shared is set; named locks are exclusive, use a row's: SELECT … FOR SHARE")
	case len(names) == 0:
		return nil, errNoKeys
	}
	targets := make([]string, len(names))
	for i, name := range names {
		targets[i] = n.Name(name)
	}
	slices.Sort(targets)
	return n.pins.lock(ctx, slices.Compact(targets), t)
}
