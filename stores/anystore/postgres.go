package anystore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/pgstore"
)

var postgresKind = kind{schemes: []string{"postgres", "postgresql"}, form: "postgres://USER@HOST/DATABASE", parse: func(url string) (address, error) {
	config, o, err := pgstore.Parse(url, nil)
	if err != nil {
		return nil, without(err, pgstore.ErrURL)
	}
	sql, err := parseSQL(url)
	return postgresAddress{sqlAddress: sql, config: config.ConnConfig, options: o}, err
}}

// postgresAddress is the URL of a store in PostgreSQL.
type postgresAddress struct {
	sqlAddress
	config  *pgx.ConnConfig
	options *pgstore.Options
	given   *pgstore.Options // beside the URL's
}

func (a postgresAddress) toRead() address {
	a.sqlAddress, a.given = a.withoutMigrate(), &pgstore.Options{ReadOnly: true}
	if config, o, err := pgstore.Parse(a.url.String(), a.given); err == nil { // as of the same URL before
		a.config, a.options = config.ConnConfig, o
	}
	return a
}

func (a postgresAddress) open(ctx context.Context) (*Store, error) {
	store, err := pgstore.Open(ctx, a.url.String(), a.given)
	switch {
	case errors.Is(err, pgstore.ErrNoSchema):
		return nil, fmt.Errorf("%w %q, and only dibs migrate makes one: correct the name, or %s", errNoSchema, a.options.Schema, cure(a))
	case errors.Is(err, pgstore.ErrNotMigrated):
		return nil, errNotMigrated
	case err != nil:
		return nil, err
	}
	return &Store{Store: store, address: a, close: store.Close, version: a.version, reads: a.given != nil}, nil
}

func (a postgresAddress) migrate(ctx context.Context) (did string, err error) {
	// Opening reports what is wrong with the server.
	s, err := a.open(ctx)
	switch {
	case err == nil:
		return "is up to date", s.Close()
	case !errors.Is(err, errNotMigrated) && !errors.Is(err, errNoSchema):
		return "", err
	}
	conn, err := pgx.ConnectConfig(ctx, a.config)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return "has its tables now", pgstore.Migrate(ctx, conn, a.options)
}

// statements returns the migrations, each in a transaction.
func (a postgresAddress) statements() (string, error) {
	all, err := pgstore.Migrations(a.options)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if a.options.Schema != "" {
		fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS \"%s\";\n\n", a.options.Schema)
	}
	for _, m := range all {
		fmt.Fprintf(&b, "-- Version %d: do not run it where the tables have it.\nBEGIN;\n\n%s\nCOMMIT;\n", m.Version, m.SQL)
	}
	return b.String(), nil
}

// checkTLS also counts a connection that is tried only if another one fails, as with sslmode=prefer.
func (a postgresAddress) checkTLS() []store.Finding {
	var hosts []string
	for _, c := range append([]*pgconn.FallbackConfig{{Host: a.config.Host, TLSConfig: a.config.TLSConfig}}, a.config.Fallbacks...) {
		if c.TLSConfig == nil {
			hosts = append(hosts, c.Host)
		}
	}
	return unencrypted("Add sslmode=verify-full to the URL.", hosts...)
}

func (a postgresAddress) check(ctx context.Context) ([]store.Finding, error) {
	conn, err := pgx.ConnectConfig(ctx, a.config)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	found, may := a.checkTLS(), false
	err = conn.QueryRow(ctx, "SELECT coalesce(has_schema_privilege(coalesce(nullif($1, ''), current_schema()), 'CREATE'), false)",
		pgx.QueryExecModeExec, a.options.Schema).Scan(&may)
	if may {
		found = append(found, mayCreate)
	}
	return found, err
}

func (a postgresAddress) version(ctx context.Context) (string, error) {
	conn, err := pgx.ConnectConfig(ctx, a.config)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return "PostgreSQL " + conn.PgConn().ParameterStatus("server_version"), nil
}
