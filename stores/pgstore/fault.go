package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/suggest"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// The errors of the server, for errors.Is. The text of an error has the server's own words and
// the cure.
var (
	// ErrURL: the URL does not name a PostgreSQL database, or a parameter is wrong.
	ErrURL = errors.New("pgstore: not a URL of a PostgreSQL database")
	// ErrUnreachable: no server answers at the address, or not in time.
	ErrUnreachable = errtype.New(errtype.Unreachable, "pgstore: the server cannot be reached")
	// ErrUnauthorized: the password is wrong, or the user lacks a right.
	ErrUnauthorized = errtype.New(errtype.Unauthorized, "pgstore: the server refuses this user")
	// ErrUnsupported: the server is not a PostgreSQL 14 or newer, or its set-up does not work
	// with the store.
	ErrUnsupported = errtype.New(errtype.Unsupported, "pgstore: the server cannot be used")
	// ErrReadOnly: the server is a standby, or takes no writes.
	ErrReadOnly = errtype.New(errtype.ReadOnly, "pgstore: the server takes no writes")
	// ErrNotMigrated: the store's tables do not exist, or are older than this program.
	ErrNotMigrated = errtype.New(errtype.NotMigrated, "pgstore: the tables are missing or old")
	// ErrNoSchema: the schema of the store does not exist. It is an ErrNotMigrated.
	ErrNoSchema = fmt.Errorf("%w: there is no such schema", ErrNotMigrated)
	// ErrNewer: the store's tables are newer than this program.
	ErrNewer = errtype.New(errtype.Newer, "pgstore: the tables are newer than this program")
	// ErrCrowded: the server has no connection left.
	ErrCrowded = errtype.New(errtype.Crowded, "pgstore: the server has no connection left")
	// ErrLocked: another transaction kept a key's row locked. It is a store.ErrBusy.
	ErrLocked = fmt.Errorf("pgstore: a key's row is locked: %w", store.ErrBusy)
)

const (
	rightsCure  = "the user needs the rights that the README of pgstore lists"
	migrateCure = "run pgstore.Migrate, or dibs migrate, once as a user that may create tables; or set Options.Migrate"
	tlsCure     = "turn TLS on in the server (ssl = on), or write sslmode=disable in the URL if nobody can listen in between"
	standbyCure = "this is a standby; connect to the primary, such as with target_session_attrs=read-write"
)

// faults are the meanings of the server's error codes.
var faults = map[string]struct {
	is   error
	cure string
}{
	"28000": {ErrUnauthorized, "the user does not exist or may not connect from this host; see pg_hba.conf"},
	"28P01": {ErrUnauthorized, "the user name or the password is wrong"},
	"42501": {ErrUnauthorized, rightsCure},
	"3D000": {ErrUnsupported, "create the database, or name another one"},
	"25000": {ErrUnsupported, "ALTER ROLE … SET default_transaction_isolation = 'read committed' for the store's user"},
	"25006": {ErrReadOnly, standbyCure},
	"42P01": {ErrNotMigrated, migrateCure},
	"42883": {ErrNotMigrated, migrateCure},
	"42704": {ErrNotMigrated, migrateCure},
	"3F000": {ErrNotMigrated, migrateCure},
	"53300": {ErrCrowded, "raise max_connections, or have the application use fewer connections"},
	"53100": {store.ErrFull, "the disk is full"},
	"53200": {store.ErrFull, "the server is out of memory"},
	"54000": {store.ErrFull, "the elements of the call are too large together"},
	"55P03": {ErrLocked, "find the transaction that keeps it locked: SELECT * FROM pg_stat_activity WHERE state = 'idle in transaction'"},
	"57P03": {ErrUnreachable, "the server is starting up or shutting down"},
	"57P01": {ErrUnreachable, "the connection was ended by an administrator"},
	"57P02": {ErrUnreachable, "the server crashed, and recovers"},
	"57014": {ErrUnreachable, "the server cancelled the statement; statement_timeout may be too short"},
}

// fault returns an error with its meaning and its cure.
func fault(is, said error, cure string) error {
	f := &storekit.Fault{Is: is, Said: said, Cure: cure}
	if e, ok := errors.AsType[*pgconn.PgError](said); ok {
		f.Text = fmt.Sprintf("%s (%s)", e.Message, e.Code)
	} else if e, ok := errors.AsType[*pgconn.ConnectError](said); ok {
		f.Text = tries(e)
	}
	return f
}

// tries returns why connecting failed, on one line. The driver's text has a line for each try, and it
// tries each address with TLS and without.
func tries(e *pgconn.ConnectError) string {
	var all []string
	for line := range strings.Lines(e.Unwrap().Error()) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "hostname resolving error: ")
		if _, dial, ok := strings.Cut(line, ": dial error: "); ok {
			line = dial // which names the address again
		}
		if !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return strings.Join(all, "; ")
}

// explain returns the error with its meaning, if it has none yet.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if _, known := errors.AsType[*storekit.Fault](err); known {
		return err
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		if name, ok := misspelt(e); ok {
			meant, _ := suggest.Name(name, parameters, nil)
			return fault(ErrURL, err, fmt.Sprintf("the URL has the parameter %q, which neither the store nor the server knows; did you mean %s?", name, meant))
		}
		if cure, ok := grant(e); ok {
			return fault(ErrUnauthorized, err, cure)
		}
		if f, ok := faults[e.Code]; ok {
			return fault(f.is, err, f.cure)
		}
		return fmt.Errorf("pgstore: the server said: %w", err)
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("pgstore: %w", err)
	case errtype.Has(err):
		return err
	case strings.Contains(err.Error(), "read only connection"): // pgx says so of all hosts
		return fault(ErrReadOnly, err, standbyCure)
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return fault(ErrUnreachable, err, tlsCure)
	}
	cure := storekit.NotThere
	if _, ok := errors.AsType[*pgconn.ConnectError](err); !ok {
		cure += "; the outcome of the call is unknown"
	}
	return fault(ErrUnreachable, err, cure)
}
