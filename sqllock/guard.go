package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
)

// ErrOvertaken says that another holder with a higher fence has written already. It is a
// dibs.ErrLost too. The error is an *OvertakenError.
var ErrOvertaken = errors.New("sqllock: overtaken by another holder")

// OvertakenError is the ErrOvertaken, and the dibs.ErrLost, that a caller gets.
type OvertakenError struct {
	Resource string
	Fence    uint64 // the caller's
	Highest  uint64 // that has been seen
}

func (e *OvertakenError) Error() string {
	return fmt.Sprintf("sqllock: the holder with fence %d of the resource %s was overtaken by the one with fence %d; roll back, and give up",
		e.Fence, digest(e.Resource), e.Highest)
}

// digest is the form in which a name may be logged.
func digest(name string) string { return dibs.Key{Name: name}.Digest() }

// Is makes errors.Is(err, ErrOvertaken) and errors.Is(err, dibs.ErrLost) true.
func (e *OvertakenError) Is(target error) bool {
	return target == ErrOvertaken || target == dibs.ErrLost
}

// Guard keeps those out who held a lease and do not know yet that they lost it: it
// remembers the highest fence that has written to a resource, in the application's
// database, and refuses lower ones. It is safe for concurrent use.
type Guard struct {
	table ownTable
	admit string
}

// GuardOptions says what a Guard is like. nil and the zero value mean the defaults.
type GuardOptions struct {
	// Table that has the fences, after its schema and a point if it must be; "":
	// dibs_fence.
	Table string
}

// NewGuard returns a Guard. Returns an error that names the option that is wrong.
func NewGuard(d Dialect, o *GuardOptions) (*Guard, error) {
	if o == nil {
		o = &GuardOptions{}
	}
	t, err := newTable(d, "GuardOptions.Table", cmp.Or(o.Table, "dibs_fence"), [3]string{
		`(resource bytea PRIMARY KEY, fence bigint NOT NULL) WITH (fillfactor = 50)`,
		`(resource VARBINARY(512) NOT NULL PRIMARY KEY, fence BIGINT NOT NULL) ENGINE = InnoDB`,
		`(resource BLOB NOT NULL PRIMARY KEY, fence INTEGER NOT NULL) WITHOUT ROWID`,
	})
	if err != nil {
		return nil, err
	}
	g := &Guard{table: t}
	switch {
	case d.mysql():
		g.admit = "INSERT INTO " + t.sql + " (resource, fence) VALUES (?, LAST_INSERT_ID(?))" +
			" ON DUPLICATE KEY UPDATE fence = LAST_INSERT_ID(GREATEST(fence, ?))"
	default:
		higher := "max"
		if d == PostgreSQL {
			higher = "greatest"
		}
		g.admit = fmt.Sprintf("INSERT INTO %s AS g (resource, fence) VALUES (%s, %s)"+
			" ON CONFLICT (resource) DO UPDATE SET fence = %s(g.fence, excluded.fence) RETURNING fence",
			t.sql, d.placeholder(1), d.placeholder(2), higher)
	}
	return g, nil
}

// Schema returns the SQL that makes the table, for those who apply theirs by
// themselves. It does nothing when the table is there.
func (g *Guard) Schema() string { return g.table.schema }

// Migrate makes the table unless it is there. Many processes may do so at once. Admit
// needs SELECT, INSERT and UPDATE.
func (g *Guard) Migrate(ctx context.Context, db *sql.DB) error { return g.table.migrate(ctx, db) }

// Admit lets a holder write to a resource: all that the transaction writes, before and
// after, is committed before a holder with a higher fence is admitted, or never. The
// resource is 1 to dibs.MaxKey bytes of anything, mostly the key's name, and the fence
// is lease.Fence(). A holder is admitted as often as it asks, until the next one was.
//
// It returns ErrOvertaken, which is a dibs.ErrLost too and has both fences, when one
// with a higher fence was admitted before. The transaction is to be rolled back then.
// It is one statement, and what it locks is the resource's row.
func (g *Guard) Admit(ctx context.Context, tx Tx, resource string, fence uint64) error {
	st, err := statementsOf(tx)
	if err != nil {
		return err
	}
	return g.check(ctx, st, resource, fence)
}

// AdmitPgx is Admit in a transaction of pgx. Only for PostgreSQL.
func (g *Guard) AdmitPgx(ctx context.Context, tx pgx.Tx, resource string, fence uint64) error {
	if g.table.d != PostgreSQL {
		return errNotPgx(g.table.d)
	}
	return g.check(ctx, pgxStatements{tx}, resource, fence)
}

func (g *Guard) check(ctx context.Context, st statements, resource string, fence uint64) error {
	if n := len(resource); n == 0 || n > dibs.MaxKey {
		return fmt.Errorf("sqllock: the resource has %d bytes; it must have 1 to %d", n, dibs.MaxKey)
	}
	mine, err := FenceValue(fence)
	if err != nil {
		return err
	}
	var highest int64
	if g.table.d.mysql() {
		highest, err = lastInsertID(ctx, st, g.admit, []byte(resource), mine, mine)
	} else {
		err = st.row(ctx, g.admit, []any{[]byte(resource), mine}, &highest)
	}
	switch {
	case err != nil:
		return g.table.fault("admitting a holder", err)
	case highest > mine:
		return &OvertakenError{Resource: resource, Fence: fence, Highest: uint64(highest)}
	}
	return nil
}

// FenceValue returns a fence as databases have it. Fences are 1 or more; those that
// stores give are microseconds or revisions, and far below the limit of 63 bits.
func FenceValue(fence uint64) (int64, error) {
	if fence == 0 || fence > math.MaxInt64 {
		return 0, fmt.Errorf("sqllock: the fence is %d; it must be that of a lease, 1 to 2⁶³-1", fence)
	}
	return int64(fence), nil
}

// FencePredicate returns the condition under which a row with a fence of its own may
// be written by a holder whose fence is the value (FenceValue) of the placeholder, "$2"
// or "?". The statement has to write the fence too:
//
//	where, err := sqllock.FencePredicate(sqllock.PostgreSQL, "fence", "$2")
//	query := "UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND " + where
//
// When it changes no row, the holder was overtaken, or there is no such row. MySQL and
// MariaDB count rows that were found but did not differ only with clientFoundRows=true
// in the driver's DSN.
func FencePredicate(d Dialect, column, placeholder string) (string, error) {
	if err := d.validate(); err != nil {
		return "", err
	}
	quoted, err := d.identifier("the column", column)
	if err != nil {
		return "", err
	}
	if placeholder != "?" && !dollar.MatchString(placeholder) || (placeholder == "?") == (d == PostgreSQL) {
		return "", fmt.Errorf("sqllock: %q is not a placeholder of %v, such as %s", placeholder, d, d.placeholder(1))
	}
	return "(" + quoted + " IS NULL OR " + quoted + " <= " + placeholder + ")", nil
}
