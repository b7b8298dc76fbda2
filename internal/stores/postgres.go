package stores

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs/pgstore"
)

func postgresBackends() []backend {
	b := postgresBackend("postgres")
	b.form = "postgres://USER@HOST/DATABASE"
	return []backend{b, postgresBackend("postgresql")}
}

func postgresBackend(scheme string) backend {
	parse := func(rest string) (*postgres, error) {
		config, o, err := pgstore.Parse(scheme+":"+rest, nil)
		if err != nil {
			return nil, err
		}
		u, err := url.Parse(scheme + ":" + rest)
		if err != nil {
			return nil, err
		}
		return &postgres{url: u.String(), config: config.ConnConfig, options: o}, nil
	}
	return backend{
		scheme: scheme, lasting: true,
		check: func(rest string) error {
			_, err := parse(rest)
			if errors.Is(err, pgstore.ErrURL) {
				return errors.New(strings.TrimPrefix(err.Error(), pgstore.ErrURL.Error()+": "))
			}
			return err
		},
		show: showUser,
		tables: func(ctx context.Context, rest string) (string, error) {
			p, err := parse(rest)
			if err != nil {
				return "", err
			}
			return p.migrate(ctx)
		},
		statements: func(rest string) (string, error) {
			p, err := parse(rest)
			if err != nil {
				return "", err
			}
			return p.statements()
		},
		missing: func(err error) bool { return errors.Is(err, pgstore.ErrNotMigrated) },
		open: func(ctx context.Context, rest string, s *Store) error {
			p, err := parse(rest)
			if err != nil {
				return err
			}
			return p.open(ctx, s)
		},
	}
}

// postgres is a URL that was read.
type postgres struct {
	url     string
	config  *pgx.ConnConfig
	options *pgstore.Options
}

func (p *postgres) open(ctx context.Context, s *Store) error {
	store, err := pgstore.Open(ctx, p.url, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	s.Store, s.close = store, store.Close
	s.version = p.version
	s.database = func() (*Database, error) {
		config := p.config.Copy()
		config.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing is prepared, because a pooler may be in between
		db := stdlib.OpenDB(*config)
		d := &Database{DB: db, Transactor: store.SQLTransactions(db, nil), Tx: orError(pgstore.SQLTx), Dollar: true}
		if p.options.Schema != "" {
			d.Schema = `"` + p.options.Schema + `"`
		}
		return d, nil
	}
	return nil
}

// migrate makes the tables if they are missing, and says what it did.
func (p *postgres) migrate(ctx context.Context) (did string, err error) {
	// What is wrong with the server, the store says best, and soonest.
	store, err := pgstore.Open(ctx, p.url, nil)
	switch {
	case err == nil:
		return "is up to date", store.Close()
	case !errors.Is(err, pgstore.ErrNotMigrated):
		return "", err
	}
	conn, err := pgx.ConnectConfig(ctx, p.config)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return "has its tables now", pgstore.Migrate(ctx, conn, p.options)
}

// statements returns the migrations, each a transaction.
func (p *postgres) statements() (string, error) {
	all, err := pgstore.Migrations(p.options)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if p.options.Schema != "" {
		fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS \"%s\";\n\n", p.options.Schema)
	}
	for _, m := range all {
		fmt.Fprintf(&b, "-- Version %d: not to be run where the tables have it.\nBEGIN;\n\n%s\nCOMMIT;\n", m.Version, m.SQL)
	}
	return b.String(), nil
}

func (p *postgres) version(ctx context.Context) (string, error) {
	conn, err := pgx.ConnectConfig(ctx, p.config)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return "PostgreSQL " + conn.PgConn().ParameterStatus("server_version"), nil
}
