package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// fakeServer is a database whose answers come when the test wants them to.
type fakeServer struct {
	query  func(sql string, args []driver.NamedValue) ([]driver.Value, error) // one row
	exec   func(sql string) error
	closed func() // if not nil: a session ends
}

// open opens a pool on it.
func (s *fakeServer) open(t *testing.T) *sql.DB {
	t.Helper()
	db := sql.OpenDB(s)
	t.Cleanup(func() { testkit.Check(t, db.Close()) })
	return db
}

func (s *fakeServer) Connect(context.Context) (driver.Conn, error) { return &fakeConn{s}, nil }
func (s *fakeServer) Driver() driver.Driver                        { return nil }

type fakeConn struct{ *fakeServer }

var errFake = errors.New("the fake server has no such thing")

func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errFake }
func (c *fakeConn) Begin() (driver.Tx, error)           { return fakeTx{}, nil }

func (c *fakeConn) Close() error {
	if c.closed != nil {
		c.closed()
	}
	return nil
}

func (c *fakeConn) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	row, err := c.query(query, args)
	return &fakeRow{row}, err
}

func (c *fakeConn) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), c.exec(query) // which knows no LastInsertId
}

type fakeTx struct{}

func (fakeTx) Commit() error   { return nil }
func (fakeTx) Rollback() error { return nil }

type fakeRow struct{ row []driver.Value }

func (r *fakeRow) Columns() []string { return make([]string, len(r.row)) }
func (r *fakeRow) Close() error      { return nil }

func (r *fakeRow) Next(into []driver.Value) error {
	if r.row == nil {
		return io.EOF
	}
	copy(into, r.row)
	r.row = nil
	return nil
}
