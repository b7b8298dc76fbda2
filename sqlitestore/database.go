package sqlitestore

import (
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	modernc "modernc.org/sqlite"
)

// OpenDB opens the store's file for the application: a sql.DB whose commits are as
// durable as the store's, whose transactions lock the file when they begin, so that
// none fails when it comes to write after it has read, and whose statements wait for
// a lock as long as the store's calls (Options.LockWait). Further pragmas for each of
// its connections are given as in "foreign_keys(1)". It is the caller's to close.
func (s *Store) OpenDB(pragmas ...string) (*sql.DB, error) {
	path := filepath.ToSlash(s.full)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // a drive's letter
	}
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {
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
