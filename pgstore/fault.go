package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

// What is wrong with the server, for errors.Is. The error's text has the
// server's own words and the cure.
var (
	// ErrURL: the URL is not one of a PostgreSQL database, or a parameter is wrong.
	ErrURL = errors.New("pgstore: not a URL of a PostgreSQL database")
	// ErrUnreachable: nobody answers at the address, or not in time.
	ErrUnreachable = errors.New("pgstore: the server cannot be reached")
	// ErrUnauthorized: the password, or what the user may do, is not enough.
	ErrUnauthorized = errors.New("pgstore: the server refuses this user")
	// ErrUnsupported: who answers is not a PostgreSQL of the right age, or it is set
	// up so that it cannot be used.
	ErrUnsupported = errors.New("pgstore: the server is not one that can be used")
	// ErrReadOnly: the server is a standby, or takes no writes.
	ErrReadOnly = errors.New("pgstore: the server takes no writes")
	// ErrNotMigrated: the store's tables are not there, or older than this program.
	ErrNotMigrated = errors.New("pgstore: the tables are missing or old")
	// ErrNewer: the store's tables are newer than this program.
	ErrNewer = errors.New("pgstore: the tables are newer than this program")
	// ErrCrowded: the server has no connection left.
	ErrCrowded = errors.New("pgstore: the server has no connection left")
	// ErrLocked: somebody else kept a key's row locked. It is a dibs.ErrBusy.
	ErrLocked = fmt.Errorf("pgstore: a key's row is locked: %w", dibs.ErrBusy)
)

const (
	migrateCure = "run pgstore.Migrate, or dibs migrate, once with a user who may create tables; or set Options.Migrate"
	standbyCure = "this is a standby; connect to the primary, such as with target_session_attrs=read-write"
)

// faults are what servers say, and what it means.
var faults = map[string]struct {
	is   error
	cure string
}{
	"28000": {ErrUnauthorized, "the user does not exist or may not come from here; see pg_hba.conf"},
	"28P01": {ErrUnauthorized, "the user name or the password is wrong"},
	"42501": {ErrUnauthorized, "the user needs the rights that the README of pgstore lists"},
	"3D000": {ErrUnsupported, "create the database, or name another one"},
	"25000": {ErrUnsupported, "ALTER ROLE … SET default_transaction_isolation = 'read committed' for the store's user"},
	"25006": {ErrReadOnly, standbyCure},
	"42P01": {ErrNotMigrated, migrateCure},
	"42883": {ErrNotMigrated, migrateCure},
	"42704": {ErrNotMigrated, migrateCure},
	"3F000": {ErrNotMigrated, migrateCure},
	"53300": {ErrCrowded, "raise max_connections, or have the application use fewer"},
	"53100": {dibs.ErrFull, "the disk is full"},
	"53200": {dibs.ErrFull, "the server is out of memory"},
	"54000": {dibs.ErrFull, "the elements of the call are too large together"},
	"55P03": {ErrLocked, "look for a transaction that is open for long: SELECT * FROM pg_stat_activity WHERE state = 'idle in transaction'"},
	"57P03": {ErrUnreachable, "the server is starting up or shutting down"},
	"57P01": {ErrUnreachable, "the connection was ended by an administrator"},
	"57P02": {ErrUnreachable, "the server crashed, and recovers"},
	"57014": {ErrUnreachable, "the server cancelled the statement; statement_timeout may be too short"},
}

// fault gives an error its meaning.
func fault(is, said error, cure string) error {
	f := &backend.Fault{Is: is, Said: said, Cure: cure}
	if e, ok := errors.AsType[*pgconn.PgError](said); ok {
		f.Text = fmt.Sprintf("%s (%s)", e.Message, e.Code)
	}
	return f
}

// explain gives an error its meaning.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if _, known := errors.AsType[*backend.Fault](err); known {
		return err
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		if f, ok := faults[e.Code]; ok {
			return fault(f.is, err, f.cure)
		}
		return fmt.Errorf("pgstore: the server said: %w", err)
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("pgstore: %w", err)
	case isOurs(err):
		return err
	case strings.Contains(err.Error(), "read only connection"): // says pgx of all that there are
		return fault(ErrReadOnly, err, standbyCure)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// isOurs reports whether an error has its meaning already.
func isOurs(err error) bool {
	for _, ours := range []error{
		ErrUnreachable, ErrUnauthorized, ErrUnsupported, ErrReadOnly, ErrNotMigrated, ErrNewer, ErrCrowded, ErrLocked,
		ErrClosed, ErrURL, dibs.ErrFull,
	} {
		if errors.Is(err, ours) {
			return true
		}
	}
	return false
}
