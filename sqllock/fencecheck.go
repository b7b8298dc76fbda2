package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// ErrOvertaken: a holder with a higher fence has written already. It is a dibs.ErrLost,
// too. The error is an *OvertakenError.
var ErrOvertaken = errors.New("sqllock: overtaken by another holder")

// OvertakenError is the error that Admit returns for ErrOvertaken. It names both fences.
type OvertakenError struct {
	// Resource is the name that was given to Admit. Do not log it; Error shows its
	// digest.
	Resource string
	Fence    uint64 // the caller's fence
	Highest  uint64 // the highest fence that was admitted
}

func (e *OvertakenError) Error() string {
	return fmt.Sprintf("sqllock: the holder with fence %d of the resource %s was overtaken by a holder with fence %d; roll back and stop",
		e.Fence, digest(e.Resource), e.Highest)
}

func digest(name string) string { return dibs.Key{Name: name}.Digest() }

// Is makes errors.Is(err, ErrOvertaken) and errors.Is(err, dibs.ErrLost) true.
func (e *OvertakenError) Is(target error) bool {
	return target == ErrOvertaken || target == dibs.ErrLost
}

// FenceCheck refuses writes of a holder that has lost its lease and does not know it yet. It
// keeps the highest fence that has written to each resource in the application's
// database, and refuses lower ones. It is safe for concurrent use.
type FenceCheck struct {
	table   ownTable
	admit   string
	observe Observer
}

// FenceCheckOptions configures a FenceCheck. nil and the zero value mean the defaults.
type FenceCheckOptions struct {
	// Table is the table of the fences, with its schema and a dot if needed. "":
	// dibs_fence.
	Table string
	// Observe is called when Admit admitted a holder or failed. Waited has the wait for the
	// transaction before, and Fence is the caller's. The end is not seen (Event.InTx). Default: none.
	Observe Observer
}

// NewFenceCheck returns a FenceCheck, or an error that names the wrong option.
func NewFenceCheck(d Dialect, o *FenceCheckOptions) (*FenceCheck, error) {
	if o == nil {
		o = &FenceCheckOptions{}
	}
	t, err := newTable(d, "FenceCheckOptions.Table", cmp.Or(o.Table, "dibs_fence"), [3]string{
		`(resource bytea PRIMARY KEY, fence bigint NOT NULL) WITH (fillfactor = 50)`,
		// A Galera cluster checks the rows that a transaction changes, so Admit always changes one.
		`(resource VARBINARY(512) NOT NULL PRIMARY KEY, fence BIGINT NOT NULL, admitted BIGINT NOT NULL DEFAULT 0) ENGINE = InnoDB`,
		`(resource BLOB NOT NULL PRIMARY KEY, fence INTEGER NOT NULL) WITHOUT ROWID`,
	})
	if err != nil {
		return nil, err
	}
	c := &FenceCheck{table: t, observe: o.Observe}
	switch {
	case d.mysql():
		c.admit = "INSERT INTO " + t.sql + " (resource, fence) VALUES (?, LAST_INSERT_ID(?))" +
			" ON DUPLICATE KEY UPDATE fence = LAST_INSERT_ID(GREATEST(fence, ?)), admitted = admitted + 1"
	default:
		higher := "max"
		if d == PostgreSQL {
			higher = "greatest"
		}
		c.admit = fmt.Sprintf("INSERT INTO %s AS g (resource, fence) VALUES (%s, %s)"+
			" ON CONFLICT (resource) DO UPDATE SET fence = %s(g.fence, excluded.fence) RETURNING fence",
			t.sql, d.placeholder(1), d.placeholder(2), higher)
	}
	return c, nil
}

// Schema returns the SQL that creates the table if it does not exist, for applications
// that run their migrations themselves.
func (c *FenceCheck) Schema() string { return c.table.schema }

// Migrate creates the table if it does not exist. Several processes may call it at once.
// Admit needs the rights SELECT, INSERT and UPDATE.
func (c *FenceCheck) Migrate(ctx context.Context, db *sql.DB) error { return c.table.migrate(ctx, db) }

// Admit lets a holder write to a resource. Everything that the transaction writes, before
// and after Admit, commits before a holder with a higher fence is admitted, or never. The
// resource is 1 to store.MaxKey bytes, usually the key's name; fence is lease.Fence(). A
// holder may call it again until a higher fence was admitted.
//
// It returns ErrOvertaken, which is a dibs.ErrLost too, when a higher fence was admitted
// before. Roll the transaction back then. Admit is one statement and locks the resource's
// row.
func (c *FenceCheck) Admit(ctx context.Context, tx Tx, resource string, fence uint64) (err error) {
	st, err := statementsOf(c.table.d, tx)
	if err != nil {
		return err
	}
	if n := len(resource); n == 0 || n > store.MaxKey {
		return fmt.Errorf("sqllock: the resource has %d bytes; it must have 1 to %d", n, store.MaxKey)
	}
	mine, err := fenceValue(fence)
	if err != nil {
		return err
	}
	seen := observed(c.observe, resource)
	seen.fence = fence
	defer func() { seen.inTx(ctx, err) }()
	var highest int64
	if c.table.d.mysql() {
		highest, err = lastInsertID(ctx, st, c.admit, []byte(resource), mine, mine)
	} else {
		err = st.row(ctx, c.admit, []any{[]byte(resource), mine}, &highest)
	}
	switch {
	case err != nil:
		return c.table.fault("admit a holder", err)
	case highest > mine:
		return &OvertakenError{Resource: resource, Fence: fence, Highest: uint64(highest)}
	}
	return nil
}

// fenceValue converts a fence to the signed integers of databases.
func fenceValue(fence uint64) (int64, error) {
	if fence == 0 || fence > math.MaxInt64 {
		return 0, fmt.Errorf("sqllock: the fence is %d; it must be a lease's fence, 1 to 2⁶³-1", fence)
	}
	return int64(fence), nil
}
