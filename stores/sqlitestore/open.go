package sqlitestore

import (
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

const (
	// applicationID marks a file as a store: "dibs".
	applicationID = 0x64696273
	// schemaVersion is the version of schema.sql.
	schemaVersion = 2
	// checkedSize is the largest file that Open checks for damage. Damage in a larger
	// file is noticed in use.
	checkedSize = 4 << 20
)

// Open opens the store in the file at path. It creates the file, but not its folder. Only
// the user of the program can read and write a new file; a file that exists keeps its mode.
// Options may be nil. Any number of processes of one host may open a file, and a process
// may open it several times. Symbolic links are resolved.
//
// When the file cannot be used, it is not changed, and Open returns a *FileError:
// ErrForeign, ErrLinked, ErrShared, ErrNewer, ErrDamaged, ErrReadOnly, ErrLocked,
// ErrDiskFull, or the system's error.
func Open(path string, o *Options) (*Store, error) { return open(path, o, hostClock) }

func open(path string, o *Options, clock clock) (*Store, error) {
	opt, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s, err := openFile(path, opt, clock)
	if err != nil {
		return nil, fault(path, err)
	}
	go s.write()
	if opt.PruneEvery > 0 {
		s.background.Go(s.pruneLoop)
	}
	return s, nil
}

func openFile(path string, opt Options, clock clock) (*Store, error) {
	names, err := resolve(path)
	if err != nil {
		return nil, err
	}
	boot, err := clock.boot()
	if err != nil {
		return nil, err
	}
	conn, err := names.open()
	if err != nil {
		return nil, err
	}
	s := newStore(path, names, opt, clock, boot, conn)
	// This comes first, so that no other file is created next to a foreign one.
	err = s.untilFree(func() error {
		_, err := s.identify()
		return err
	})
	if err == nil && conn.ReadOnly() {
		err = ErrReadOnly
	}
	if err == nil {
		s.writeQueue.open(names.full, names.files[0])
		err = s.setUpInTurn()
	}
	if err == nil {
		err = s.names.opened()
	}
	if err == nil {
		s.st, err = s.tables.prepare(conn)
	}
	if err != nil {
		return nil, errors.Join(err, s.writeQueue.close(), conn.Close())
	}
	return s, nil
}

// openWaits is how many times LockWait Open waits for its turn, because many processes
// may open a file at once.
const openWaits = 6

// setUpInTurn waits for its turn and sets the file up.
func (s *Store) setUpInTurn() error {
	start := time.Now()
	late := func() bool { return time.Since(start) > openWaits*s.opt.LockWait }
	if !s.writeQueue.enter(s.opt.patience(), late, s.isFree) {
		return s.lockedFor(nil)
	}
	defer s.writeQueue.leave()
	return s.untilFree(s.setUp)
}

// untilFree repeats f while the file is busy, for LockWait.
func (s *Store) untilFree(f func() error) error {
	start := time.Now()
	again := backoff.Exponential{Min: time.Millisecond, Max: 20 * time.Millisecond}
	for failed := 1; ; failed++ {
		err := f()
		if !isCode(err, lite.Busy, lite.Locked) || time.Since(start) > s.opt.LockWait {
			return err
		}
		time.Sleep(again.Pause(failed))
	}
}

// isFree reports whether SQLite's lock is free.
func (s *Store) isFree() bool {
	err := s.conn.Exec("BEGIN IMMEDIATE")
	if err == nil {
		err = s.conn.Exec("ROLLBACK")
	}
	return !isCode(err, lite.Busy, lite.Locked) // what comes next meets other errors, too
}

// setUp checks that the file is a sound store, and creates the schema if there is none.
// It may be repeated when the file was busy. It does not change a foreign file.
func (s *Store) setUp() error {
	fresh, err := s.identify()
	if err != nil {
		return err
	}
	if fresh && !s.opt.Shared {
		// It must come before the first page is written.
		if err := s.conn.Exec("PRAGMA auto_vacuum = INCREMENTAL"); err != nil {
			return err
		}
	}
	if mode, err := s.conn.QueryText("PRAGMA journal_mode = WAL"); err != nil {
		return fmt.Errorf("the journal mode cannot be made WAL: %w", err)
	} else if mode != "wal" {
		return fmt.Errorf("its filesystem does not support a write-ahead log (the journal mode is %q)", mode)
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

// identify reports whether the store's tables are missing. It returns an error if they
// may not be created there, or are not sound.
func (s *Store) identify() (fresh bool, err error) {
	all, err := s.conn.Query("SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return false, err
	}
	id, err := s.conn.Query("PRAGMA application_id")
	if err != nil {
		return false, err
	}
	shared, err := s.has(sharedTables)
	if err != nil {
		return false, err
	}
	own := id == applicationID && all > 0
	switch {
	case s.opt.Shared && own || !s.opt.Shared && shared:
		return false, ErrShared
	case s.opt.Shared && !shared:
		return true, nil
	case !s.opt.Shared && all == 0 && (id == 0 || id == applicationID):
		return true, nil
	case !s.opt.Shared && !own:
		return false, fmt.Errorf("%w: it is another program's SQLite database", ErrForeign)
	}
	version, err := s.conn.Query(s.tables.sql("SELECT version FROM @meta WHERE one = 1"))
	if err == nil && version > schemaVersion {
		err = fmt.Errorf("%w: its schema is version %d, and this program knows version %d", ErrNewer, version, schemaVersion)
	}
	if err == nil && version < schemaVersion {
		err = fmt.Errorf("%w: its schema is version %d, from before the first release", ErrForeign, version)
	}
	if err == nil {
		err = s.sound()
	}
	return false, err
}

// has reports whether the file has these tables.
func (s *Store) has(t tables) (bool, error) {
	n, err := s.conn.Query(t.sql("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = '@meta'"))
	return n > 0, err
}

// sound returns an error when a small file is damaged. In an application's file it checks
// only the store's tables, because other tables may need functions that only the
// application has.
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

// checks are statements that return "ok" for a sound file.
func (s *Store) checks() []string {
	if !s.opt.Shared {
		return []string{"PRAGMA quick_check(1)"}
	}
	var all []string
	for _, table := range []string{"@meta", "@lease", "@progress", "@idle", "@place", "@record", "@wake"} {
		all = append(all, s.tables.sql("PRAGMA quick_check("+table+")"))
	}
	return all
}

// adopt creates the schema if there is none, and ties store time to this boot of the
// host. After a reboot, store time continues from its last value. It runs in a transaction.
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
