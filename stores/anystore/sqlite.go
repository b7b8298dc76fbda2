package anystore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

var sqliteKind = kind{schemes: []string{"sqlite"}, form: "sqlite:/PATH", parse: func(text string) (address, error) {
	path, query, asked := strings.Cut(strings.TrimPrefix(text, "sqlite:"), "?")
	rest := strings.TrimPrefix(text, "sqlite:"+path)
	switch {
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
	options, err := sqliteOptions(query, asked)
	return sqliteAddress{url: text, path: path, options: options}, err
}}

// sqliteOptions reads the parameters of a URL.
func sqliteOptions(query string, asked bool) (o sqlitestore.Options, err error) {
	values, err := url.ParseQuery(query)
	if asked && (err != nil || len(values) == 0) {
		return o, errSQLiteParameter
	}
	for name, all := range values {
		value := all[len(all)-1]
		switch {
		case len(all) > 1:
			return o, fmt.Errorf("the parameter %s is there twice", name)
		case name == "shared" && (value == "true" || value == "false"):
			o.Shared = value == "true"
		case name == "shared":
			return o, fmt.Errorf("shared is %q; write shared=true for a file of an application", value)
		case name == "lock_wait":
			if o.LockWait, err = time.ParseDuration(value); err != nil || o.LockWait < time.Millisecond {
				return o, fmt.Errorf("lock_wait is %q; write a time of at least 1ms, such as lock_wait=10s", value)
			}
		default:
			return o, fmt.Errorf("%q is not a parameter: %w", name, errSQLiteParameter)
		}
	}
	return o, nil
}

var errSQLiteParameter = errors.New("after ? there can be shared=true, for a file of an application, and lock_wait=10s, with & between them; the name of a store's file cannot have a ?")

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
	url     string
	path    string // absolute
	options sqlitestore.Options
}

func (a sqliteAddress) String() string  { return a.url }
func (a sqliteAddress) secret() bool    { return false }
func (a sqliteAddress) toRead() address { return a }

func (a sqliteAddress) check(context.Context) ([]store.Finding, error) { return nil, nil }

func (a sqliteAddress) find() error {
	if !exists(a.path) {
		return fmt.Errorf("there is no file %s: the first dibs run, serve or proxy makes it; if one runs already, name its store with --store or DIBS_STORE", a.path)
	}
	return nil
}

func (a sqliteAddress) open(context.Context) (*Store, error) {
	f, err := sqlitestore.Open(a.path, &a.options)
	if err != nil {
		return nil, err
	}
	return &Store{Store: f, address: a, close: f.Close, version: sqliteVersion}, nil
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
