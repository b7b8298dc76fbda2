package anystore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/mysqlstore"
)

var mysqlKind = kind{schemes: []string{"mysql", "mariadb"}, form: "mysql://USER@HOST/DATABASE", parse: func(url string) (address, error) {
	config, o, err := mysqlstore.ParseURL(url, nil)
	if err == nil {
		_, err = mysqlstore.Migrations(o) // refuses a bad prefix
	}
	if err != nil {
		return nil, without(err, mysqlstore.ErrURL)
	}
	sql, err := parseSQL(url)
	return mysqlAddress{sqlAddress: sql, config: config, options: o}, err
}}

// mysqlAddress is the URL of a store in MySQL or MariaDB.
type mysqlAddress struct {
	sqlAddress
	config  *mysql.Config
	options *mysqlstore.Options
	given   *mysqlstore.Options // beside the URL's
}

func (a mysqlAddress) toRead() address {
	a.sqlAddress, a.given = a.withoutMigrate(), &mysqlstore.Options{ReadOnly: true}
	return a
}

func (a mysqlAddress) open(ctx context.Context) (*Store, error) {
	store, err := mysqlstore.Open(ctx, a.url.String(), a.given)
	switch {
	case errors.Is(err, mysqlstore.ErrNotMigrated):
		return nil, errNotMigrated
	case err != nil:
		return nil, err
	}
	return &Store{Store: store, address: a, close: store.Close, version: a.version, reads: a.given != nil}, nil
}

// db returns a pool beside the store's.
func (a mysqlAddress) db() (*sql.DB, error) {
	config := a.config.Clone()
	config.Timeout = 5 * time.Second // to connect
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

func (a mysqlAddress) migrate(ctx context.Context) (did string, err error) {
	// Opening reports what is wrong with the server.
	s, err := a.open(ctx)
	switch {
	case err == nil:
		return "is up to date", s.Close()
	case !errors.Is(err, errNotMigrated):
		return "", err
	}
	db, err := a.db()
	if err != nil {
		return "", err
	}
	defer db.Close()
	return "has its tables now", mysqlstore.Migrate(ctx, db, a.options)
}

// statements returns the migrations. They are in no transaction, because MySQL commits after
// each statement that creates a table. They can be run again.
func (a mysqlAddress) statements() (string, error) {
	all, err := mysqlstore.Migrations(a.options)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, m := range all {
		fmt.Fprintf(&b, "-- Version %d: do not run it where the tables have it.\n\n%s\n", m.Version, m.SQL)
	}
	return b.String(), nil
}

// creates asks whether the user may create tables. It sees what was granted to the user itself, not
// to roles. A grant on a database may have a pattern in place of the name.
const creates = `SELECT EXISTS (SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'CREATE' AND grantee = me)
	OR EXISTS (SELECT 1 FROM information_schema.schema_privileges WHERE privilege_type = 'CREATE' AND grantee = me AND DATABASE() LIKE table_schema)
	FROM (SELECT CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1))) AS me) AS session`

func (a mysqlAddress) checkTLS() []store.Finding {
	if tls := a.config.TLSConfig; a.config.TLS != nil || tls == "true" || tls == "skip-verify" {
		return nil
	}
	return unencrypted("Add tls=true to the URL.", a.config.Addr)
}

func (a mysqlAddress) check(ctx context.Context) ([]store.Finding, error) {
	db, err := a.db()
	if err != nil {
		return nil, err
	}
	defer db.Close()
	found, may := a.checkTLS(), false
	if err = db.QueryRowContext(ctx, creates).Scan(&may); may {
		found = append(found, mayCreate)
	}
	return found, err
}

func (a mysqlAddress) version(ctx context.Context) (v string, err error) {
	db, err := a.db()
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
