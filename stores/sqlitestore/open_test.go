package sqlitestore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, data, 0o644))
}

// sqlite runs statements on a file as some other program would.
func sqlite(t testing.TB, path string, statements ...string) *lite.Conn {
	t.Helper()
	conn, err := lite.Open(path, lite.Create)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	for _, sql := range statements {
		if err := conn.Exec(sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return conn
}

// What is not a sound store is refused with a reason, and left as it is.
func TestOpenRefuses(t *testing.T) {
	store := func(t *testing.T, path string) []byte {
		s, err := Open(path, nil)
		testkit.Must(t, err)
		mustGrant(t, s, lock("k"))
		testkit.Must(t, s.Close())
		data := testkit.ReadFile(t, path)
		return data
	}
	for _, test := range []struct {
		name string
		make func(t *testing.T, path string)
		want error
	}{
		{"a text file", func(t *testing.T, path string) {
			write(t, path, []byte("dear diary, this is not a database\n"))
		}, ErrForeign},
		{"a long text file", func(t *testing.T, path string) {
			write(t, path, bytes.Repeat([]byte("all work and no play\n"), 10_000))
		}, ErrForeign},
		{"another program's database", func(t *testing.T, path string) {
			testkit.Must(t, sqlite(t, path, "CREATE TABLE meta (one, version)", "INSERT INTO meta VALUES (1, 1)").Close())
		}, ErrForeign},
		{"another program's empty database", func(t *testing.T, path string) {
			testkit.Must(t, sqlite(t, path, "PRAGMA application_id = 77").Close())
		}, ErrForeign},
		{"a newer schema", func(t *testing.T, path string) {
			store(t, path)
			testkit.Must(t, sqlite(t, path, "UPDATE meta SET version = 99").Close())
		}, ErrNewer},
		{"a damaged schema", func(t *testing.T, path string) {
			data := store(t, path)
			copy(data[100:], bytes.Repeat([]byte{0xa5}, 3000))
			write(t, path, data)
		}, ErrDamaged},
		{"a damaged table", func(t *testing.T, path string) {
			data := store(t, path)
			for at := 4096; at < len(data); at += 4096 {
				copy(data[at:], bytes.Repeat([]byte{0xa5}, 64))
			}
			write(t, path, data)
		}, ErrDamaged},
		{"a file cut short", func(t *testing.T, path string) {
			data := store(t, path)
			write(t, path, data[:2*4096])
		}, ErrDamaged},
		{"a folder", func(t *testing.T, path string) {
			testkit.Must(t, os.Mkdir(path, 0o755))
		}, ErrForeign},
		{"a device", func(t *testing.T, path string) {
			testkit.Must(t, os.Symlink(os.DevNull, path))
		}, ErrForeign},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := testFile(t)
			test.make(t, path)
			before, _ := os.ReadFile(path)
			// It is refused at once: none of this ends by waiting.
			err := within(t, "opening it", func() error {
				s, err := Open(path, &Options{LockWait: time.Hour})
				if err == nil {
					_ = s.Close()
				}
				return err
			})
			if err == nil {
				t.Fatal("it was opened")
			}
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), cures[test.want]) {
				t.Errorf("the error is %q; it should name the file and %q with its cure", err, test.want)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestOpenWithoutFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "missing")
	_, err := Open(filepath.Join(folder, "dibs.db"), nil)
	if err == nil || !strings.Contains(err.Error(), folder) {
		t.Errorf("the error is %v; it should name the folder", err)
	}
	if exists(folder) {
		t.Error("the folder was made")
	}
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, []byte("x"))
	if _, err := Open(filepath.Join(file, "dibs.db"), nil); err == nil || !strings.Contains(err.Error(), "not a") {
		t.Errorf("below a file: %v", err)
	}
	for _, path := range []string{"", "a\x00b"} {
		if _, err := Open(path, nil); err == nil {
			t.Errorf("the path %q was opened", path)
		}
	}
}

// Names that mean something else to SQLite are names of files here.
func TestOpenOddNames(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"./:memory:", "./file:x?mode=memory", "a b%20?#.db", "-"} {
		for range 2 {
			s, err := Open(name, nil)
			if err != nil {
				t.Fatalf("%q: %v", name, err)
			}
			c := lock("k")
			mustGrant(t, s, c)
			mustSettle(t, s, release(c))
			testkit.Check(t, s.Close())
			if !exists(name) {
				t.Errorf("%q: there is no such file", name)
			}
		}
	}
}

// An empty file is a new store: that is what tools that make temporary files
// leave.
func TestOpenEmptyFile(t *testing.T) {
	path := testFile(t)
	write(t, path, nil)
	s := openTest(t, path, nil, hostClock)
	mustGrant(t, s, lock("k"))
}

func TestOpenLocked(t *testing.T) {
	path := testFile(t)
	openTest(t, path, nil, hostClock)
	other := sqlite(t, path, "BEGIN IMMEDIATE")
	if _, err := Open(path, &Options{LockWait: 50 * time.Millisecond}); !errors.Is(err, ErrLocked) {
		t.Errorf("the error is %v", err)
	}
	testkit.Must(t, other.Exec("ROLLBACK"))
	openTest(t, path, nil, hostClock)
}

// Calls on a file that another program has locked fail after LockWait, or when their
// context ends, with nothing done.
func TestLocked(t *testing.T) {
	path := testFile(t)
	s := openTest(t, path, &Options{LockWait: 100 * time.Millisecond}, hostClock)
	patient := openTest(t, path, &Options{LockWait: time.Hour}, hostClock)
	other := sqlite(t, path, "BEGIN IMMEDIATE")

	claim := lock("k")
	err := s.Claim(t.Context(), []store.Claim{claim}, make([]store.Answer, 1))
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), cures[ErrLocked]) || errtype.Of(err) != "busy" {
		t.Errorf("the error is %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	given := make(chan error, 1)
	go func() { given <- patient.Claim(ctx, []store.Claim{claim}, make([]store.Answer, 1)) }()
	testkit.Eventually(t, "the file is found locked", patient.isBlocked)
	cancel()
	if err := testkit.Await(t, "giving up", given); !errors.Is(err, ErrLocked) || !errors.Is(err, context.Canceled) || errtype.Of(err) != "canceled" {
		t.Errorf("given up, the error is %v", err)
	}

	testkit.Must(t, other.Exec("ROLLBACK"))
	mustGrant(t, s, lock("k")) // to another token, so the first one did not get it
}

// A file that is deleted or replaced under a store would let two stores grant the
// same key.
func TestMoved(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(path string) error{
		"deleted": os.Remove,
		"replaced": func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits until the store looks
			path := testFile(t)
			s, err := Open(path, nil)
			testkit.Must(t, err)
			defer s.Close()
			mustGrant(t, s, lock("k"))
			testkit.Must(t, move(path))
			testkit.Eventually(t, "the store notices", func() bool {
				err = s.Claim(t.Context(), []store.Claim{lock("other")}, make([]store.Answer, 1))
				return err != nil
			})
			if !errors.Is(err, ErrMoved) || errtype.Of(err) != "moved" {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestClosed(t *testing.T) {
	s, err := Open(testFile(t), nil)
	testkit.Must(t, err)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	err = s.Claim(t.Context(), []store.Claim{lock("k")}, make([]store.Answer, 1))
	if !errors.Is(err, ErrClosed) || errtype.Of(err) != "closed" {
		t.Errorf("a claim after the close: %v", err)
	}
	for _, err := range s.List(t.Context(), store.Query{}) {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("a list after the close: %v", err)
		}
	}
}

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
