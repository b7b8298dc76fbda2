package sqlitestore

import (
	"database/sql"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// A guest leaves the application's file as it is, but for its own tables and the
// journal mode.
func TestShared(t *testing.T) {
	path := testFile(t)
	sqlite(t, path,
		"PRAGMA application_id = 77", "PRAGMA user_version = 12", "PRAGMA auto_vacuum = NONE",
		"CREATE TABLE meta (lease TEXT)", "CREATE TABLE lease (k TEXT)", "CREATE TABLE free (b BLOB)",
		"INSERT INTO free SELECT zeroblob(1000000) FROM (VALUES (1), (2), (3))", "DELETE FROM free")
	c := newTestClock("a", time.Hour)
	s := openTest(t, path, &Options{Shared: true, PruneEvery: -1}, c.clock())
	x := lock("k")
	mustGrant(t, s, x)
	mustSettle(t, s, keep(x))
	c.pass(2 * time.Hour)
	if n, err := s.Prune(t.Context(), 0); n != 1 || err != nil {
		t.Errorf("%d removed, %v", n, err)
	}
	conn, err := lite.Open(path, lite.ReadWrite)
	testkit.Must(t, err)
	defer conn.Close()
	for sql, want := range map[string]int64{
		"PRAGMA application_id": 77, "PRAGMA user_version": 12, "PRAGMA auto_vacuum": 0,
		"SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'dibs@_%' ESCAPE '@'": 3,
	} {
		if got, err := conn.Query(sql); err != nil || got != want {
			t.Errorf("%s is %d, not %d (%v)", sql, got, want, err)
		}
	}
	if free, err := conn.Query("PRAGMA freelist_count"); err != nil || free < 700 {
		t.Errorf("of the application's free pages %d are left (%v)", free, err)
	}
	if mode, err := conn.QueryText("PRAGMA journal_mode"); err != nil || mode != "wal" {
		t.Errorf("the journal mode is %q, %v", mode, err)
	}
}

// All programs that use a file must agree on Shared.
func TestSharedByAll(t *testing.T) {
	for _, shared := range []bool{false, true} {
		path := testFile(t)
		s, err := Open(path, &Options{Shared: shared})
		testkit.Must(t, err)
		testkit.Must(t, s.Close())
		before, _ := os.ReadFile(path)
		if _, err := Open(path, &Options{Shared: !shared}); !errors.Is(err, ErrShared) || !strings.Contains(err.Error(), cures[ErrShared]) {
			t.Errorf("made with Shared %v, opened with %v: %v", shared, !shared, err)
		}
		if after, _ := os.ReadFile(path); string(before) != string(after) {
			t.Error("the file was changed")
		}
		openTest(t, path, &Options{Shared: shared}, hostClock)
	}
}

// An application that has the file in another journal mode and does not let go of it
// gets an error.
func TestSharedInAnotherJournalMode(t *testing.T) {
	path := testFile(t)
	app, err := sql.Open("sqlite", "file:"+path)
	testkit.Must(t, err)
	defer app.Close()
	if _, err := app.ExecContext(t.Context(), "CREATE TABLE t (n)"); err != nil {
		t.Fatal(err)
	}
	tx, err := app.BeginTx(t.Context(), nil)
	testkit.Must(t, err)
	if _, err := tx.ExecContext(t.Context(), "INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	_, err = Open(path, &Options{Shared: true, LockWait: 50 * time.Millisecond})
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "journal mode") {
		t.Errorf("while it is in use: %v", err)
	}
	testkit.Must(t, tx.Commit())
	s := openTest(t, path, &Options{Shared: true}, hostClock)
	mustGrant(t, s, lock("k"))
	if _, err := app.ExecContext(t.Context(), "INSERT INTO t VALUES (2)"); err != nil {
		t.Errorf("the application cannot go on: %v", err)
	}
}
