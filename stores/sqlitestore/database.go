package sqlitestore

import (
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	modernc "modernc.org/sqlite"
)

// OpenDB opens the store's file for the application. Its commits are as durable as the
// store's. Its transactions lock the file when they begin, so none fails when it writes
// after it has read. Its statements wait for locks as long as the store's calls
// (Options.LockWait). Pass further pragmas for each connection as in "foreign_keys(1)".
// The caller closes the sql.DB.
func (s *Store) OpenDB(pragmas ...string) (*sql.DB, error) {
	path := filepath.ToSlash(s.names.full)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // a drive letter
	}
	// mode=rw: a connection that the pool opens later must not create a file.
	q := url.Values{"mode": {"rw"}, "_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", s.opt.LockWait.Milliseconds()),
		"synchronous(full)",
	}}
	q["_pragma"] = append(q["_pragma"], pragmas...)
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	c, err := modernc.NewConnector(dsn.String())
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: %s: %w", s.path, err)
	}
	return sql.OpenDB(c), nil
}
