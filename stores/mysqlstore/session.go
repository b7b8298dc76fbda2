package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/store/storekit"
)

const (
	// frontConns and backConns bound the connections of a store, beside the connection that polls.
	frontConns = 4
	backConns  = 4

	// lockWait is how many seconds a statement waits for a row.
	lockWait = 2

	// hangLimit bounds the wait for an answer if the caller sets no limit.
	hangLimit = 60 * time.Second
)

// dialLimit bounds an attempt to connect. Only tests change it.
var dialLimit = 5 * time.Second

// setUp sets up a session, whatever the server's global variables and its init_connect are. It
// pins each variable that changes what the store's statements do, return or commit. The character
// set is utf8mb4, because in some others a byte and the backslash that escapes a quote are one
// character. The server does not end idle sessions, because it may have no connection left later.
// DEFAULT would be the global value, so each value is written out. What only one kind of server
// has is in a comment that only this kind carries out.
var setUp = fmt.Sprintf("SET NAMES utf8mb4;SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;"+
	"SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',autocommit=1,completion_type=0,time_zone='+00:00',"+
	"sql_select_limit=18446744073709551615,sql_big_selects=1,sql_safe_updates=0,sql_auto_is_null=0,"+
	"unique_checks=1,foreign_key_checks=1,max_sort_length=1024,optimizer_switch='default'"+
	"/*M!100600 ,max_statement_time=0,in_predicate_conversion_threshold=0,query_cache_type=0,optimizer_max_sel_arg_weight=32000,sort_buffer_size=2097152*/"+
	"/*!80000 ,max_execution_time=0,range_optimizer_max_mem_size=8388608*/,"+
	"innodb_lock_wait_timeout=%d,lock_wait_timeout=10,net_write_timeout=20,%s", lockWait, idles)

const (
	// Between two round trips of a transaction a session keeps rows locked, so the server ends the
	// session if its process hangs or is cut off.
	idles  = "wait_timeout=604800"
	begins = "SET SESSION wait_timeout=5;START TRANSACTION"
	ends   = "SET SESSION " + idles
)

// connector makes the store's connections.
type connector struct{ driver.Connector }

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	dialing, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := c.Connector.Connect(dialing)
	if err == io.EOF { // of the driver's own query, which has no row then
		return nil, &storekit.Fault{
			Is: ErrUnreachable, Said: errors.New("it answers a SELECT with no row"),
			Cure: "its global sql_select_limit is 0: SET GLOBAL sql_select_limit = 18446744073709551615",
		}
	}
	if err != nil {
		return nil, err
	}
	s := &script{}
	if err := s.raw(setUp).done().runOn(dialing, conn); err != nil {
		defer conn.Close()
		if code(err) != 0 { // a product that lacks one of the variables says what it is
			if met, asked := identify(dialing, conn); asked == nil {
				err = cmp.Or(refuse(met), err)
			}
		}
		return nil, err
	}
	return conn, nil
}

// own returns the settings of the store's connections. They have the application's address and
// user, but none of its session settings.
func own(config *mysql.Config) *mysql.Config {
	c := config.Clone()
	c.MultiStatements, c.InterpolateParams, c.CheckConnLiveness = true, true, true
	c.ClientFoundRows, c.ParseTime, c.RejectReadOnly = false, false, false
	c.MaxAllowedPacket = 0 // as the server says
	c.Params, c.Collation = nil, ""
	c.Logger = &mysql.NopLogger{}
	if c.Timeout == 0 {
		c.Timeout = dialLimit
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = hangLimit
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = hangLimit
	}
	return c
}

// pool returns a pool of n connections, which stay open.
func pool(c driver.Connector, n int) *sql.DB {
	db := sql.OpenDB(connector{c})
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db
}

// use calls f with a session. If f fails, use rolls back.
func use(ctx context.Context, db *sql.DB, f func(*sql.Conn) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err = f(conn); err == nil {
		return nil
	}
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialLimit)
	defer cancel()
	undo := &script{}
	if wrong := undo.raw("ROLLBACK;"+ends).done().run(undoing, conn); wrong != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	return err
}

// on sends a script on a session of the pool.
func (s *script) on(ctx context.Context, db *sql.DB) error {
	return use(ctx, db, func(c *sql.Conn) error { return s.run(ctx, c) })
}

// try makes a call, and makes it again if it was undone.
func try(ctx context.Context, call func() error) error {
	return explain(remote.Try(ctx, undone, call))
}

// try is try, and has the next call connect again after a server said that it takes no writes:
// another server may have its address.
func (s *Store) try(ctx context.Context, call func() error) error {
	err := try(ctx, call)
	if errors.Is(err, ErrReadOnly) {
		for _, db := range []*sql.DB{s.front, s.back, s.polls} {
			db.SetMaxIdleConns(-1) // which closes them
			db.SetMaxIdleConns(db.Stats().MaxOpenConnections)
		}
	}
	return err
}

// undone reports whether an error means that a call did nothing, and another try may succeed.
func undone(err error) bool {
	switch code(err) {
	case 1213, // deadlock
		1020, // record has changed since last read
		1637, // too many active transactions
		3058, // deadlock of user locks
		3101, // group replication rolled it back
		3572: // NOWAIT
		return true
	}
	return errors.Is(err, driver.ErrBadConn)
}

// code returns the number of a server's error, or 0.
func code(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}
