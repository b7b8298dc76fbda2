package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// The errors of the server, for errors.Is. The text of an error has the server's own words and
// the cure.
var (
	// ErrURL: the URL does not name a MySQL or MariaDB database, or a parameter is wrong.
	ErrURL = errors.New("mysqlstore: not a URL of a MySQL or MariaDB database")
	// ErrUnreachable: no server answers at the address, or not in time.
	ErrUnreachable = errtype.New(errtype.Unreachable, "mysqlstore: the server cannot be reached")
	// ErrUnauthorized: the password is wrong, or the user lacks a right.
	ErrUnauthorized = errtype.New(errtype.Unauthorized, "mysqlstore: the server refuses this user")
	// ErrUnsupported: the server is not a MySQL 8.0 or MariaDB 10.6 or newer, or its set-up does
	// not work with the store.
	ErrUnsupported = errtype.New(errtype.Unsupported, "mysqlstore: the server cannot be used")
	// ErrReadOnly: the server is a replica, or takes no writes.
	ErrReadOnly = errtype.New(errtype.ReadOnly, "mysqlstore: the server takes no writes")
	// ErrNotMigrated: the store's tables do not exist, or are older than this program.
	ErrNotMigrated = errtype.New(errtype.NotMigrated, "mysqlstore: the tables are missing or old")
	// ErrNewer: the store's tables are newer than this program.
	ErrNewer = errtype.New(errtype.Newer, "mysqlstore: the tables are newer than this program")
	// ErrCrowded: the server has no connection left.
	ErrCrowded = errtype.New(errtype.Crowded, "mysqlstore: the server has no connection left")
	// ErrLocked: another transaction kept a key's row locked. It is a store.ErrBusy.
	ErrLocked = fmt.Errorf("mysqlstore: a key's row is locked: %w", store.ErrBusy)
	// ErrClosed: the store was closed.
	ErrClosed = errtype.New(errtype.Closed, "mysqlstore: the store is closed")
)

const (
	migrateCure  = "run mysqlstore.Migrate, or dibs migrate, once as a user that may create and alter tables; or set Options.Migrate"
	readOnlyCure = "read_only, super_read_only or, in a session of the application, transaction_read_only is on: connect to the primary, or turn it off"
	rightsCure   = "the user needs the rights that the README of mysqlstore lists"
	crowdedCure  = "raise max_connections or the user's own limit, or have the application use fewer connections"
	stopsCure    = "the server is starting up or shutting down, or an administrator ended the connection"
)

var errNoMeta = fmt.Errorf("%w: the row of its version is missing (%s)", ErrNotMigrated, migrateCure)

// faults are the meanings of the server's error numbers.
var faults = map[uint16]struct {
	is   error
	cure string
}{
	1044: {ErrUnauthorized, rightsCure},
	1045: {ErrUnauthorized, "the user name or the password is wrong, or the user may not connect from this host"},
	1130: {ErrUnauthorized, "no user may connect from this host; CREATE USER … @ its address"},
	1142: {ErrUnauthorized, rightsCure},
	1143: {ErrUnauthorized, rightsCure},
	1227: {ErrUnauthorized, rightsCure},
	1698: {ErrUnauthorized, "the user may only connect from the server's host, or the password is wrong"},
	1049: {ErrUnsupported, "create the database, or name another one"},
	1046: {ErrUnsupported, "name a database"},
	1286: {ErrUnsupported, "the server needs InnoDB"},
	1193: {ErrUnsupported, "use MySQL 8.0 or newer, or MariaDB 10.6 or newer"},
	1665: {ErrUnsupported, "set binlog_format = ROW or MIXED"},
	1290: {ErrReadOnly, readOnlyCure},
	1792: {ErrReadOnly, readOnlyCure},
	1836: {ErrReadOnly, readOnlyCure},
	1048: {ErrNotMigrated, migrateCure}, // the fence of a @meta without a row
	1146: {ErrNotMigrated, migrateCure},
	1054: {ErrNotMigrated, migrateCure},
	1040: {ErrCrowded, crowdedCure},
	1203: {ErrCrowded, crowdedCure},
	1226: {ErrCrowded, crowdedCure},
	1205: {ErrLocked, "find the transaction that keeps it locked: SELECT * FROM information_schema.innodb_trx ORDER BY trx_started"},
	1021: {store.ErrFull, "the disk is full"},
	1037: {store.ErrFull, "the server is out of memory"},
	1041: {store.ErrFull, "the server is out of memory"},
	1114: {store.ErrFull, "the table is full"},
	1118: {store.ErrTooLarge, "the record is too large for the server's redo log"},
	1153: {store.ErrTooLarge, "raise max_allowed_packet"},
	1197: {store.ErrTooLarge, "raise max_binlog_cache_size"},
	1705: {store.ErrTooLarge, "raise max_binlog_stmt_cache_size"},
	1047: {ErrUnreachable, "this node of the cluster is not ready"},
	1053: {ErrUnreachable, stopsCure},
	1152: {ErrUnreachable, stopsCure},
	1317: {ErrUnreachable, stopsCure},
	1927: {ErrUnreachable, stopsCure},
	4031: {ErrUnreachable, stopsCure},
	1969: {ErrUnreachable, "max_statement_time is too short"},
	3024: {ErrUnreachable, "max_execution_time is too short"},
}

// explain returns the error with its meaning, if it has none yet.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if _, known := errors.AsType[*storekit.Fault](err); known {
		return err
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		if f, ok := faults[e.Number]; ok {
			if f.is == ErrUnauthorized {
				f.cure = grant(e.Message) + f.cure
			}
			return &storekit.Fault{Is: f.is, Said: err, Text: fmt.Sprintf("%s (%d)", e.Message, e.Number), Cure: f.cure}
		}
		return fmt.Errorf("mysqlstore: the server said: %w", err)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("mysqlstore: %w", err)
	}
	if errtype.Has(err) {
		return err
	}
	if errors.Is(err, mysql.ErrNoTLS) {
		return &storekit.Fault{Is: ErrUnreachable, Said: err, Cure: "turn TLS on in the server (ssl_cert and ssl_key), or write tls=false in the URL if nobody can listen in between"}
	}
	cure := storekit.NotThere
	if e, ok := errors.AsType[*net.OpError](err); !ok || e.Op != "dial" {
		cure += "; the outcome of the call is unknown"
	}
	return &storekit.Fault{Is: ErrUnreachable, Said: err, Cure: cure}
}
