package stores

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/mysqlstore"
)

func mysqlBackends() []backend {
	b := mysqlBackend("mysql")
	b.form = "mysql://USER@HOST/DATABASE"
	return []backend{b, mysqlBackend("mariadb")}
}

func mysqlBackend(scheme string) backend {
	parse := func(rest string) (*mysqlURL, error) {
		config, o, err := mysqlstore.ParseURL(scheme+":"+rest, nil)
		if err == nil {
			_, err = mysqlstore.Migrations(o) // which knows a good prefix
		}
		if err != nil {
			return nil, err
		}
		u, err := url.Parse(scheme + ":" + rest)
		if err != nil {
			return nil, err
		}
		return &mysqlURL{url: u.String(), config: config, options: o}, nil
	}
	return backend{
		scheme: scheme, lasting: true,
		check: func(rest string) error {
			_, err := parse(rest)
			if errors.Is(err, mysqlstore.ErrURL) {
				return errors.New(strings.TrimPrefix(err.Error(), mysqlstore.ErrURL.Error()+": "))
			}
			return err
		},
		show: showUser,
		tables: func(ctx context.Context, rest string) (string, error) {
			u, err := parse(rest)
			if err != nil {
				return "", err
			}
			return u.migrate(ctx)
		},
		statements: func(rest string) (string, error) {
			u, err := parse(rest)
			if err != nil {
				return "", err
			}
			return u.statements()
		},
		missing: func(err error) bool { return errors.Is(err, mysqlstore.ErrNotMigrated) },
		open: func(ctx context.Context, rest string, s *Store) error {
			u, err := parse(rest)
			if err != nil {
				return err
			}
			return u.open(ctx, s)
		},
	}
}

// mysqlURL is a URL that was read.
type mysqlURL struct {
	url     string
	config  *mysql.Config
	options *mysqlstore.Options
}

func (u *mysqlURL) open(ctx context.Context, s *Store) error {
	store, err := mysqlstore.Open(ctx, u.url, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	s.Store, s.close = store, store.Close
	s.version = u.version
	s.database = func() (*Database, error) {
		db, err := u.db()
		if err != nil {
			return nil, err
		}
		return &Database{DB: db, Transactor: store.Transactions(db, nil), Tx: orError(mysqlstore.Tx)}, nil
	}
	return nil
}

// db returns a pool that is not the store's.
func (u *mysqlURL) db() (*sql.DB, error) {
	config := u.config.Clone()
	config.Timeout = 5 * time.Second // to connect
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	return db, nil
}

// migrate makes the tables if they are missing, and says what it did.
func (u *mysqlURL) migrate(ctx context.Context) (did string, err error) {
	// What is wrong with the server, the store says best, and soonest.
	store, err := mysqlstore.Open(ctx, u.url, nil)
	switch {
	case err == nil:
		return "is up to date", store.Close()
	case !errors.Is(err, mysqlstore.ErrNotMigrated):
		return "", err
	}
	db, err := u.db()
	if err != nil {
		return "", err
	}
	defer db.Close()
	return "has its tables now", mysqlstore.Migrate(ctx, db, u.options)
}

// statements returns the migrations. MySQL commits after each statement that makes a
// table, so there is no transaction around them; they can be run again.
func (u *mysqlURL) statements() (string, error) {
	all, err := mysqlstore.Migrations(u.options)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, m := range all {
		fmt.Fprintf(&b, "-- Version %d: not to be run where the tables have it.\n\n%s\n", m.Version, m.SQL)
	}
	return b.String(), nil
}

func (u *mysqlURL) version(ctx context.Context) (v string, err error) {
	db, err := u.db()
	if err != nil {
		return "", err
	}
	defer db.Close()
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&v); err != nil {
		return "", err
	}
	if strings.Contains(v, "MariaDB") {
		return v, nil
	}
	return "MySQL " + v, nil
}
