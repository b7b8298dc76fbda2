package anystore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

var sqliteKind = kind{schemes: []string{"sqlite"}, form: "sqlite:/PATH", parse: func(url string) (address, error) {
	path, query, asked := strings.Cut(strings.TrimPrefix(url, "sqlite:"), "?")
	rest := strings.TrimPrefix(url, "sqlite:"+path)
	switch {
	case asked && query != "shared=true" && query != "shared=false":
		return nil, errors.New("after ? only shared=true is possible, for a file of an application; the name of a store's file cannot have a ?")
	case path == "":
		return nil, errors.New("the path is missing: write sqlite:/PATH, as in sqlite:/var/lib/dibs/dibs.db")
	case strings.HasPrefix(path, "//") && !strings.HasPrefix(path, "///"):
		if strings.Contains(path, "@") { // what comes before it may be a password
			return nil, errors.New("a file has no host and no user: write sqlite:/PATH")
		}
		return nil, fmt.Errorf("a file has no host: write %s, or sqlite:%s if that is the absolute path", whole(path[2:], rest), path[1:]+rest)
	case strings.HasPrefix(path, "file:"):
		return nil, errors.New("write the path alone, sqlite:/PATH: what SQLite calls a URI is not read here")
	case path == ":memory:":
		return nil, errors.New("write memory: for a store in memory")
	case !filepath.IsAbs(path):
		return nil, fmt.Errorf("the path %s is relative, so it is another store in each folder: write %s", path, whole(path, rest))
	}
	return sqliteAddress{url: url, path: path, shared: query == "shared=true"}, nil
}}

// whole returns the URL with the absolute path that a relative one may have meant. rest is what
// follows the path.
func whole(path, rest string) string {
	folder, err := os.Getwd()
	if below, ok := strings.CutPrefix(path, "~/"); ok { // which no shell expands after the colon
		path = below
		folder, err = os.UserHomeDir()
	}
	if err != nil {
		return "the absolute path"
	}
	// Not filepath.Join, which removes "..": the folder before it can be a symbolic link.
	return "sqlite:" + strings.TrimSuffix(folder, string(filepath.Separator)) + string(filepath.Separator) + strings.TrimPrefix(path, "./") + rest
}

// sqliteAddress is the URL of a store in a file.
type sqliteAddress struct {
	url    string
	path   string // absolute
	shared bool   // with the tables of an application
}

func (a sqliteAddress) String() string  { return a.url }
func (a sqliteAddress) secret() bool    { return false }
func (a sqliteAddress) toRead() address { return a }

func (a sqliteAddress) check(context.Context) ([]store.Finding, error) { return nil, nil }

func (a sqliteAddress) find() error {
	if !exists(a.path) {
		return fmt.Errorf("there is no file %s; name another store with --store or DIBS_STORE", a.path)
	}
	return nil
}

func (a sqliteAddress) open(context.Context) (*Store, error) {
	f, err := sqlitestore.Open(a.path, &sqlitestore.Options{Shared: a.shared})
	if err != nil {
		return nil, err
	}
	s := &Store{Store: f, address: a, close: f.Close, version: sqliteVersion}
	if a.shared {
		s.database = func() (*Database, error) {
			db, err := f.OpenDB()
			if err != nil {
				return nil, err
			}
			return &Database{DB: db, Transactor: f.Transactions(db), Tx: sqlitestore.Begin}, nil
		}
	}
	return s, nil
}

func (a sqliteAddress) migrate(ctx context.Context) (string, error) {
	did := "is up to date"
	if !exists(a.path) {
		did = "is created"
	}
	s, err := a.open(ctx)
	if err != nil {
		return "", err
	}
	return did + "; a program that uses the store does this by itself", s.Close()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func (a sqliteAddress) statements() (string, error) {
	return fmt.Sprintf("-- %s: the first program that uses the store creates the file; there is nothing to run\n", a), nil
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
