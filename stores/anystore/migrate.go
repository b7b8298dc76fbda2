package anystore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// migrateLimit bounds Migrate.
const migrateLimit = time.Minute

// errNotMigrated says that open found no tables, or those of an older version. Only Migrate makes
// them: another database is another store, so a program that made them would lock nobody out.
var errNotMigrated = errors.New("the tables are missing or old")

// errNoSchema says that open found no schema of that name.
var errNoSchema = errors.New("there is no schema")

// migrator is an address of a store with tables or a file.
type migrator interface {
	address
	// migrate creates what is missing, and returns what it did.
	migrate(context.Context) (did string, err error)
	// statements returns the tables as SQL.
	statements() (string, error)
}

// Migrate creates the tables of a store if they are missing, and returns a line that says
// what it did. Several processes can call it at once.
func Migrate(ctx context.Context, url string) (string, error) {
	a, err := parse(url)
	if err != nil {
		return "", err
	}
	m, ok := a.(migrator)
	if !ok {
		return a.String() + " has no tables, so there is nothing to migrate", nil
	}
	ctx, cancel := context.WithTimeout(ctx, migrateLimit)
	defer cancel()
	did, err := m.migrate(ctx)
	if err != nil {
		return "", unusable(a, err)
	}
	return a.String() + " " + did, nil
}

// Migrations returns the SQL of Migrate for a new store. It connects to nothing.
func Migrations(url string) (string, error) {
	a, err := parse(url)
	if err != nil {
		return "", err
	}
	if m, ok := a.(migrator); ok {
		return m.statements()
	}
	return "-- " + a.String() + " has no tables, so there is nothing to migrate\n", nil
}

// openMigrated opens a store, and says what to do if its tables are missing.
func openMigrated(ctx context.Context, a address) (*Store, error) {
	s, err := a.open(ctx)
	if errors.Is(err, errNotMigrated) {
		err = fmt.Errorf("%w; %s", errNotMigrated, cure(a))
	}
	return s, err
}

// cure says how to make the tables.
func cure(a address) string {
	password := ""
	if a.secret() {
		password = " with the password, which is not shown here"
	}
	return fmt.Sprintf("run dibs migrate --store '%s'%s, or apply the SQL that it prints with --print", a, password)
}

// sqlAddress is the URL of a store in a SQL database.
type sqlAddress struct{ url *url.URL }

func parseSQL(raw string) (sqlAddress, error) {
	u, err := url.Parse(raw)
	return sqlAddress{u}, err
}

// passwords are the parameters of a URL that have one.
var passwords = []string{"password", "sslpassword"}

// String returns the URL without its password. The user stays, because the user names the
// database too.
func (a sqlAddress) String() string {
	u := *a.url
	if _, has := u.User.Password(); has {
		u.User = url.User(u.User.Username())
	}
	query := u.Query()
	for _, name := range passwords {
		if query.Has(name) {
			query.Del(name)
			u.RawQuery = query.Encode()
		}
	}
	return u.String()
}

func (a sqlAddress) secret() bool {
	_, has := a.url.User.Password()
	for _, name := range passwords {
		has = has || a.url.Query().Has(name)
	}
	return has
}

// withoutMigrate returns the URL without its parameter migrate.
func (a sqlAddress) withoutMigrate() sqlAddress {
	query := a.url.Query()
	if !query.Has("migrate") {
		return a
	}
	u := *a.url
	query.Del("migrate")
	u.RawQuery = query.Encode()
	return sqlAddress{&u}
}

func (sqlAddress) find() error { return nil }
