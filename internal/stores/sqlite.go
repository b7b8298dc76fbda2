package stores

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/dibs-go/dibs/sqlitestore"
)

// sqliteBackend is the store in a file.
var sqliteBackend = backend{
	scheme: "sqlite", form: "sqlite:PATH", lasting: true,
	check: func(rest string) error {
		rest, _, err := sqliteFile(rest)
		switch {
		case err != nil:
			return err
		case rest == "":
			return errors.New("the path is missing: write sqlite:PATH, as in " + Default)
		case strings.HasPrefix(rest, "//") && !strings.HasPrefix(rest, "///"):
			return fmt.Errorf("a file has no host: write sqlite:%[1]s, or sqlite:/%[1]s if it is absolute", rest[2:])
		case rest == ":memory:":
			return errors.New("a store in memory is memory: here")
		}
		return nil
	},
	exists: func(rest string) error {
		path, _, err := sqliteFile(rest)
		if err == nil {
			_, err = os.Stat(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there is no file %s; name another store with --store or DIBS_STORE", path)
		}
		return err
	},
	open: func(_ context.Context, rest string, s *Store) error {
		f, shared, err := openSQLite(rest)
		if err != nil {
			return err
		}
		s.Store, s.close = f, f.Close
		s.version = sqliteVersion
		if shared {
			s.database = func() (*Database, error) {
				db, err := f.OpenDB()
				if err != nil {
					return nil, err
				}
				return &Database{DB: db, Transactor: f.Transactions(db), Tx: sqlitestore.Begin}, nil
			}
		}
		return nil
	},
	// Opening does it all.
	tables: func(_ context.Context, rest string) (string, error) {
		path, _, err := sqliteFile(rest)
		if err != nil {
			return "", err
		}
		_, err = os.Stat(path)
		fresh := errors.Is(err, fs.ErrNotExist)
		f, _, err := openSQLite(rest)
		if err != nil {
			return "", err
		}
		did := "is up to date"
		if fresh {
			did = "is made"
		}
		return did + "; every command that opens the file sees to that by itself", f.Close()
	},
}

// sqliteFile reads what comes after the colon.
func sqliteFile(rest string) (path string, o *sqlitestore.Options, err error) {
	path, query, asked := strings.Cut(rest, "?")
	switch {
	case !asked, query == "shared=false":
		return path, nil, nil
	case query == "shared=true":
		return path, &sqlitestore.Options{Shared: true}, nil
	}
	return "", nil, errors.New("what comes after the ? is not shared=true, for a file that is an application's; the name of a store's file cannot have a ?")
}

func openSQLite(rest string) (f *sqlitestore.Store, shared bool, err error) {
	path, o, err := sqliteFile(rest)
	if err != nil {
		return nil, false, err
	}
	f, err = sqlitestore.Open(path, o)
	return f, o != nil, err
}

func sqliteVersion(ctx context.Context) (string, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return "", err
	}
	var v string
	err = db.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&v)
	return "SQLite " + v, errors.Join(err, db.Close())
}
