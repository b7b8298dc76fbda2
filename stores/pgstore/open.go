package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/store/storekit"
)

// openLimit bounds Open and New, migrateLimit the migration with Options.Migrate, and
// connectLimit an attempt to connect.
const (
	openLimit    = 8 * time.Second
	connectLimit = 5 * time.Second
	migrateLimit = time.Minute
)

// oldest is the oldest major version of a server that works.
const oldest = 14

// Open connects to the database that the URL names and returns a Store on it. Options may be nil.
// The URL overrides them:
//
//	postgres://USER:PASSWORD@HOST[:PORT][,HOST…]/DATABASE?schema=S&prefix=P&wake=auto|listen|poll&migrate=true
//
// The other parameters are those of pgx and libpq, such as sslmode and sslrootcert. Of several
// hosts Open takes the host that accepts writes, unless target_session_attrs says otherwise. Open
// makes a few calls, and takes 8 s at most; with Options.Migrate a minute more.
//
// The errors say what is wrong and what to do: ErrURL; ErrUnreachable if no server answers;
// ErrUnsupported if the server cannot be used, such as a product that only looks like PostgreSQL
// (docs/reference/databases.md); ErrUnauthorized if it refuses the user
// or the user lacks a right that any call needs; ErrReadOnly
// if it is a standby; ErrNotMigrated if the tables are missing; ErrNewer if they are newer; and
// the errors of calls.
func Open(ctx context.Context, rawURL string, o *Options) (*Store, error) {
	config, o, err := parse(rawURL, o)
	if err != nil {
		return nil, err
	}
	return newStore(ctx, config, o)
}

// Parse reads a URL as Open does, without connecting. It returns the settings of the connection,
// and the options that the URL overrides. Its error is an ErrURL.
func Parse(rawURL string, o *Options) (*pgxpool.Config, *Options, error) {
	config, d, err := parse(rawURL, o)
	if err == nil {
		if _, wrong := d.withDefaults(); wrong != nil {
			err = fmt.Errorf("%w: %w", ErrURL, wrong)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return config, d, nil
}

// parse reads a URL. It returns a copy of the options that the URL overrides.
func parse(rawURL string, o *Options) (*pgxpool.Config, *Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	u, err := url.Parse(rawURL)
	if err != nil || !strings.HasPrefix(rawURL, "postgres://") && !strings.HasPrefix(rawURL, "postgresql://") {
		return nil, nil, fmt.Errorf("%w: write postgres://USER:PASSWORD@HOST/DATABASE", ErrURL)
	}
	query := u.Query()
	take := func(name string) string {
		v := query.Get(name)
		query.Del(name)
		return v
	}
	if v := take("schema"); v != "" {
		d.Schema = v
	}
	if v := take("prefix"); v != "" {
		d.Prefix = v
	}
	if v := take("migrate"); v != "" {
		if d.Migrate, err = strconv.ParseBool(v); err != nil {
			return nil, nil, fmt.Errorf("%w: migrate is %q; write true or false", ErrURL, v)
		}
	}
	switch v := take("wake"); v {
	case "":
	case "auto":
		d.Wake = WakeAuto
	case "listen":
		d.Wake = WakeListen
	case "poll":
		d.Wake = WakePoll
	default:
		return nil, nil, fmt.Errorf("%w: wake is %q; write auto, listen or poll", ErrURL, v)
	}
	if !query.Has("target_session_attrs") {
		query.Set("target_session_attrs", "read-write")
		if d.ReadOnly { // the transactions of a user that only reads may be read-only
			query.Set("target_session_attrs", "primary")
		}
	}
	u.RawQuery = query.Encode()
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		// The error begins with the URL, in which pgx leaves sslpassword.
		_, reason, _ := strings.Cut(err.Error(), "`: ")
		return nil, nil, fmt.Errorf("%w: %s", ErrURL, reason)
	}
	return config, &d, nil
}

// begin checks the server, and makes the tables with Options.Migrate.
func (s *Store) begin(ctx context.Context) error {
	meeting, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	if err := s.meet(meeting); err != nil {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return fault(ErrUnreachable, err, "it does not answer in time; check that it does not hang, and that it is a PostgreSQL")
		}
		return err
	}
	if s.options.Migrate {
		migrating, cancel := context.WithTimeout(ctx, migrateLimit)
		defer cancel()
		if err := s.names.schemaExists(migrating, s.front); err != nil {
			return err
		}
		if err := Migrate(migrating, s.front, &s.options); err != nil {
			return err
		}
		meeting, cancel = context.WithTimeout(ctx, openLimit)
		defer cancel()
	}
	if err := s.agree(meeting); err != nil {
		return err
	}
	if s.options.ReadOnly {
		return s.read(meeting)
	}
	// This call finds out whether the functions exist, and the user may call them.
	if err := storekit.Probe(meeting, s); err != nil {
		return err
	}
	return s.requireRights(meeting)
}

// meet finds out what the server is, checks its version, and finds out whether a pooler is in
// between.
func (s *Store) meet(ctx context.Context) error {
	conn, err := s.front.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if s.met, err = identify(ctx, conn.Conn()); err != nil {
		return err
	}
	if p := s.met.Refusing(product.OfStore); p != nil {
		return fault(ErrUnsupported, errors.New(p.Refusal()), p.Remedy())
	}
	text := conn.Conn().PgConn().ParameterStatus("server_version")
	if major, ok := majorOf(text); ok && major < oldest {
		return fault(ErrUnsupported, fmt.Errorf("its version is %s", text),
			fmt.Sprintf("use PostgreSQL %d or newer", oldest))
	}
	switch err := direct(ctx, conn.Conn()); {
	case err == nil:
	case !errors.Is(err, errPooled):
		return err
	case s.options.Wake == WakeListen:
		return fault(ErrUnsupported, err, "no connection can listen through it; connect to the server itself, or let Options.Wake be WakeAuto")
	default:
		s.pooled.Store(true)
	}
	if s.pooled.Load() || conn.Conn().Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		s.unprepared.Store(true)
	}
	return nil
}

// identify asks a server what it is.
func identify(ctx context.Context, conn *pgx.Conn) (*product.Met, error) {
	return product.PostgreSQL.Ask(func(question string, add func(name, text string)) error {
		rows, err := conn.Query(ctx, question, pgx.QueryExecModeExec)
		if err != nil {
			return err
		}
		var name, text string
		_, err = pgx.ForEachRow(rows, []any{&name, &text}, func() error { add(name, text); return nil })
		if _, refused := errors.AsType[*pgconn.PgError](err); refused {
			return nil
		}
		return err
	})
}

// agree checks the version of the tables.
func (s *Store) agree(ctx context.Context) error {
	switch have, err := s.names.version(ctx, s.front); {
	case err != nil:
		return err
	case have > version:
		return tooNew(have)
	case have < version:
		if err := s.names.schemaExists(ctx, s.front); err != nil {
			return err
		}
		return fault(ErrNotMigrated, fmt.Errorf("the tables %s.%s_… have version %d, this program needs %d", s.names.schema, s.names.prefix, have, version), migrateCure)
	}
	return nil
}

// read reads no row, to find out whether the user may read the tables.
func (s *Store) read(ctx context.Context) error {
	_, err := s.front.Exec(ctx, s.names.sql("SELECT FROM @key, @holder, @waiter, @progress, @meta LIMIT 0"), pgx.QueryExecModeExec)
	return err
}

// errPooled: there is a transaction pooler in front of the server.
var errPooled = errors.New("a pooler is in between that gives each transaction another connection")

// direct returns errPooled unless the connection goes to the server itself. A pooler invents the
// number by which a connection can be cancelled.
func direct(ctx context.Context, conn *pgx.Conn) error {
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
		return err
	}
	if pid != conn.PgConn().PID() {
		return errPooled
	}
	return nil
}

// majorOf reads the major version of "15.18 (Debian 15.18-0+deb12u1)".
func majorOf(text string) (int, bool) {
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	n, err := strconv.Atoi(digits)
	return n, err == nil
}
