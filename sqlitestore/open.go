package sqlitestore

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

const (
	// applicationID marks a SQLite file as ours: "dibs".
	applicationID = 0x64696273
	// schemaVersion is the version of schema.sql.
	schemaVersion = 1
	// checkedSize is up to which size a file is checked for damage when it is
	// opened; a larger one would take too long, and damage is noticed in use.
	checkedSize = 4 << 20
)

// Open opens the store in the file at path, making it if it is not there; its
// folder must exist. Options may be nil. Any number of processes of one host
// may have the same file open, and one process may have it open several times.
//
// It returns a *FileError when the file cannot be used, and then leaves it as it
// is: ErrForeign, ErrNewer, ErrDamaged, ErrReadOnly, ErrLocked, ErrDiskFull, or
// what the system said.
func Open(path string, o *Options) (*Store, error) { return open(path, o, hostClock) }

func open(path string, o *Options, clock clock) (*Store, error) {
	opt, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if path == "" || strings.ContainsRune(path, 0) {
		return nil, fmt.Errorf("sqlitestore: the path %q cannot name a file", path)
	}
	// SQLite gives relative names such as ":memory:" a meaning of their own.
	full, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: %w", err)
	}
	s, err := openFile(full, opt, clock)
	if err != nil {
		return nil, fault(path, err)
	}
	s.path = path
	go s.write()
	if opt.PruneEvery > 0 {
		s.background.Go(s.prunes)
	}
	return s, nil
}

func openFile(path string, opt Options, clock clock) (*Store, error) {
	if err := inspectPath(path); err != nil {
		return nil, err
	}
	boot, err := clock.boot()
	if err != nil {
		return nil, err
	}
	conn, err := lite.Open(path, lite.Create)
	if err != nil {
		return nil, err
	}
	s := newStore(path, opt, clock, boot, conn)
	// First whether it is ours, so that nothing is made beside a file that is
	// not.
	err = s.untilFree(func() error {
		_, err := s.identify()
		return err
	})
	if err == nil && conn.ReadOnly() {
		err = ErrReadOnly
	}
	if err == nil {
		err = s.turnstile.open(path)
	}
	if err == nil {
		err = s.setUpInTurn()
	}
	if err == nil {
		s.file, err = os.Stat(path)
	}
	if err == nil {
		s.st, err = s.tables.prepare(conn)
	}
	if err != nil {
		return nil, errors.Join(err, s.turnstile.close(), conn.Close())
	}
	return s, nil
}

// openPatience is how many times as long as for a file that is locked somebody waits for
// the turn to open one, because many may open it at once.
const openPatience = 6

// setUpInTurn waits for its turn, and then sets the file up.
func (s *Store) setUpInTurn() error {
	start := time.Now()
	if !s.turnstile.enter(func() bool { return time.Since(start) > openPatience*s.opt.LockWait }) {
		return s.lockedFor(nil)
	}
	defer s.turnstile.leave()
	return s.untilFree(s.setUp)
}

// untilFree repeats f while the file is busy, for LockWait.
func (s *Store) untilFree(f func() error) error {
	start := time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := f()
		if !isCode(err, lite.Busy, lite.Locked) || time.Since(start) > s.opt.LockWait {
			return err
		}
		time.Sleep(wait/2 + rand.N(wait))
	}
}

// inspectPath says what is wrong with the path before SQLite sees it. It does
// not open the file: closing it again would take away the locks that other
// connections of this process have on it.
func inspectPath(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%w: it is a folder", ErrForeign)
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%w: it is not a regular file", ErrForeign)
	case err == nil:
		return writable(path)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	folder := filepath.Dir(path)
	switch info, err := os.Stat(folder); {
	case err != nil:
		return fmt.Errorf("its folder is not there: %w; make it first", err)
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder", folder)
	}
	return nil
}

// setUp makes sure that the file is ours and sound, and makes the schema if
// there is none. It can be repeated when the file was busy, and changes nothing
// in a file that is not ours.
func (s *Store) setUp() error {
	fresh, err := s.identify()
	if err != nil {
		return err
	}
	if fresh && !s.opt.Shared {
		// It has to come before the first page is written.
		if err := s.conn.Exec("PRAGMA auto_vacuum = INCREMENTAL"); err != nil {
			return err
		}
	}
	if mode, err := s.conn.QueryText("PRAGMA journal_mode = WAL"); err != nil {
		return fmt.Errorf("the journal mode cannot be made WAL: %w", err)
	} else if mode != "wal" {
		return fmt.Errorf("its filesystem does not do what a write-ahead log needs (the journal mode is %q)", mode)
	}
	for _, sql := range []string{
		"PRAGMA synchronous = FULL",
		"PRAGMA wal_autocheckpoint = 1000",
		"PRAGMA journal_size_limit = 16777216",
		"PRAGMA cache_size = -16384",
		"PRAGMA temp_store = MEMORY",
		"BEGIN IMMEDIATE",
	} {
		if err := s.conn.Exec(sql); err != nil {
			return err
		}
	}
	err = s.adopt()
	if err == nil {
		err = s.conn.Exec("COMMIT")
	}
	if s.conn.InTransaction() {
		err = errors.Join(err, s.conn.Exec("ROLLBACK"))
	}
	return err
}

// identify reports whether the file has no tables of ours, and an error unless they
// may be made there or are sound.
func (s *Store) identify() (fresh bool, err error) {
	all, err := s.conn.Query("SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return false, err
	}
	id, err := s.conn.Query("PRAGMA application_id")
	if err != nil {
		return false, err
	}
	guest, err := s.has(sharedTables)
	if err != nil {
		return false, err
	}
	own := id == applicationID && all > 0
	switch {
	case s.opt.Shared && own || !s.opt.Shared && guest:
		return false, ErrShared
	case s.opt.Shared && !guest:
		return true, nil
	case !s.opt.Shared && all == 0 && (id == 0 || id == applicationID):
		return true, nil
	case !s.opt.Shared && !own:
		return false, fmt.Errorf("%w: it is a SQLite database of something else", ErrForeign)
	}
	version, err := s.conn.Query(s.tables.sql("SELECT version FROM @meta WHERE one = 1"))
	if err == nil && version > schemaVersion {
		err = fmt.Errorf("%w: its schema is version %d, and this program knows version %d", ErrNewer, version, schemaVersion)
	}
	if err == nil {
		err = s.sound()
	}
	return false, err
}

// has reports whether the file has such tables.
func (s *Store) has(t tables) (bool, error) {
	n, err := s.conn.Query(t.sql("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = '@meta'"))
	return n > 0, err
}

// sound returns an error when a file that is small enough to be read is damaged. Of
// an application's file only our tables are looked at: what others are checked by
// may be known to the application alone.
func (s *Store) sound() error {
	pages, err := s.conn.Query("PRAGMA page_count")
	if err != nil || pages*4096 > checkedSize {
		return err
	}
	for _, sql := range s.checks() {
		check, err := s.conn.QueryText(sql)
		if err != nil {
			return err
		}
		if check != "ok" {
			return fmt.Errorf("%w: %s", ErrDamaged, check)
		}
	}
	return nil
}

// checks are the statements that say "ok" of a file that is sound.
func (s *Store) checks() []string {
	if !s.opt.Shared {
		return []string{"PRAGMA quick_check(1)"}
	}
	var all []string
	for _, table := range []string{"@meta", "@lease", "@memory", "@place", "@record", "@wake"} {
		all = append(all, s.tables.sql("PRAGMA quick_check("+table+")"))
	}
	return all
}

// adopt runs in a transaction. It makes the schema if there is none, and ties
// store time to this boot of the host: after a reboot it goes on from where it
// was last seen.
func (s *Store) adopt() error {
	made, err := s.has(s.tables)
	if err != nil {
		return err
	}
	uptime := s.clock.monotonic()
	if !made {
		if err := s.conn.ExecScript(s.tables.sql(schemaSQL)); err != nil {
			return err
		}
		if !s.opt.Shared {
			if err := s.conn.Exec(fmt.Sprintf("PRAGMA application_id = %d", applicationID)); err != nil {
				return err
			}
		}
		return s.conn.Exec(s.tables.sql(fmt.Sprintf(
			"INSERT INTO @meta (one, version, boot, offset, clock, fence) VALUES (1, %d, x'%x', %d, 0, 0)", schemaVersion, s.boot, -uptime)))
	}
	boot, err := s.conn.QueryText(s.tables.sql("SELECT boot FROM @meta WHERE one = 1"))
	if err != nil || boot == s.boot {
		return err
	}
	return s.conn.Exec(s.tables.sql(fmt.Sprintf("UPDATE @meta SET boot = x'%x', offset = clock - %d WHERE one = 1", s.boot, uptime)))
}
