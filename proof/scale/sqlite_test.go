package main

import (
	"database/sql"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore"
)

// newSQLite returns a SQLite file beside its model. What is counted is in its log: how
// many transactions, and how many bytes.
func newSQLite(t *testing.T) *backend {
	path := filepath.Join(t.TempDir(), "dibs.db")
	// It stays open, so that nothing is moved out of the log when a store is closed.
	first, err := sqlitestore.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { errors.Join(db.Close(), first.Close()) })
	ask := func(t *testing.T, pragma string) float64 {
		t.Helper()
		var n float64
		if err := db.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	return &backend{
		model: SQLite{},
		open: func(t *testing.T, prune time.Duration) dibs.Store {
			t.Helper()
			s, err := sqlitestore.Open(path, &sqlitestore.Options{PruneEvery: prune})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
		quiet: func(t *testing.T) {
			t.Helper()
			eventually(t, "the log is empty", func() bool {
				var busy, pages, moved int
				err := db.QueryRowContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &moved)
				return err == nil && busy == 0
			})
		},
		used: func(t *testing.T) counts {
			t.Helper()
			log, err := os.ReadFile(path + "-wal")
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			c := counts{calls: factor, log: factor}
			for len(log) > walHeader && len(log[walHeader:]) >= sqlitePage {
				frame := log[walHeader:]
				c.Log += sqlitePage
				if binary.BigEndian.Uint32(frame[4:]) != 0 { // the size of the file after a commit
					c.Calls++
				}
				log = log[sqlitePage:]
			}
			return c
		},
		space: func(t *testing.T) float64 { t.Helper(); return ask(t, "page_count") * ask(t, "page_size") },
		grain: 32 << 10,
	}
}

// walHeader is how long the log's own header is.
const walHeader = 32
