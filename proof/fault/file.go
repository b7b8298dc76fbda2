package fault

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/dibs-go/dibs/internal/backoff"
)

// fileGate keeps the faults of the file one after the other.
const fileGate = "file"

func fileFaults() []*Fault {
	return []*Fault{
		{
			Name: "file-lock", Kind: File, gate: fileGate, applies: needFile, strike: lockFile,
			About: "another program keeps the file locked for writing", Evidence: "a writer that SQLite sent away because the file was locked",
		},
		{
			Name: "disk-full", Kind: File, gate: fileGate, applies: needSmallDisk, strike: fillDisk,
			About: "the filesystem of the file is full, and there is space again", Evidence: "an answer to a worker that the disk is full",
		},
		{
			Name: "io-error", Kind: File, gate: fileGate, applies: needLimits, strike: failWrites,
			About: "the kernel refuses what a worker writes to files (RLIMIT_FSIZE), and takes it again", Evidence: "an answer to a worker that there was an I/O error",
		},
	}
}

// path returns the file of the store.
func (t *Target) path() string {
	rest := strings.TrimPrefix(t.URL, "sqlite:")
	path, _, _ := strings.Cut(rest, "?")
	return strings.TrimPrefix(path, "//")
}

func needFile(t *Target) error {
	if t.backend() != "sqlite" {
		return errors.New("the store is not a file")
	}
	return nil
}

// db opens the file as any program may.
func (t *Target) db(ctx context.Context) (*sql.DB, *sql.Conn, error) {
	db, err := sql.Open("sqlite", t.path())
	if err != nil {
		return nil, nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return db, conn, nil
}

func lockFile(ctx context.Context, t *Target, r *rand.Rand) (hits int, err error) {
	holding := context.WithoutCancel(ctx)
	db, conn, err := t.db(holding)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close(), db.Close()) }()
	// The workers keep the file busy.
	if _, err := conn.ExecContext(holding, "PRAGMA busy_timeout = 5000"); err != nil {
		return 0, err
	}
	if _, err := conn.ExecContext(holding, "BEGIN IMMEDIATE"); err != nil {
		return 0, err
	}
	if sent, err := t.sentAway(holding); err == nil && sent {
		hits = 1
	}
	_ = backoff.Sleep(ctx, t.spell(r))
	_, err = conn.ExecContext(holding, "ROLLBACK")
	return hits, err
}

// sentAway reports whether a writer gets the error now that the file is locked.
func (t *Target) sentAway(ctx context.Context) (bool, error) {
	db, conn, err := t.db(ctx)
	if err != nil {
		return false, err
	}
	_, err = conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	closed := errors.Join(conn.Close(), db.Close())
	return err != nil && strings.Contains(err.Error(), "locked"), closed
}

// smallDisk is the size of a filesystem up to which it may be filled, because it was made for
// the run.
const smallDisk = 256 << 20

func needSmallDisk(t *Target) error {
	if err := needFile(t); err != nil {
		return err
	}
	if err := needWorkers(t); err != nil {
		return err
	}
	folder := filepath.Dir(t.path())
	size, err := sizeOfDisk(folder)
	if err != nil {
		return err
	}
	if size > smallDisk {
		return fmt.Errorf("others may need what is left of the %d MiB that %s has; put the file on a small filesystem (mount -t tmpfs -o size=64m tmpfs FOLDER)", size>>20, folder)
	}
	return nil
}

// fullTexts are in the errors of stores whose disk is full.
var fullTexts = []string{"disk is full"}

func fillDisk(ctx context.Context, t *Target, r *rand.Rand) (_ int, err error) {
	count := t.errorsWith(fullTexts)
	// The log of SQLite is written again from its beginning where it has its space already.
	// Cut off, it needs some.
	if err := t.cutLog(); err != nil {
		return 0, err
	}
	filler, err := os.CreateTemp(filepath.Dir(t.path()), ".dibs-filler-")
	if err != nil {
		return 0, err
	}
	// Without a name it takes its space for as long as it is open, and no longer, whatever
	// ends us.
	defer func() { err = errors.Join(err, filler.Close()) }()
	if err := os.Remove(filler.Name()); err != nil {
		return 0, err
	}
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	spell := t.spell(r)
	go func() {
		t.lasting(over, spell, hit(count))
		cancel()
	}()
	block := make([]byte, 64<<10)
	for over.Err() == nil {
		// Down to the last byte, and again what is given back meanwhile.
		for n := len(block); n > 0; {
			if _, err := filler.Write(block[:n]); err != nil {
				if n /= 2; !isFull(err) {
					return 0, err
				}
			}
			if over.Err() != nil {
				break
			}
		}
		_ = backoff.Sleep(over, 5*time.Millisecond)
	}
	return hits(count), nil
}

// cutLog makes SQLite write its log back and truncate it. Readers may prevent that for a while.
func (t *Target) cutLog() error {
	ctx, cancel := context.WithTimeout(context.Background(), look)
	defer cancel()
	db, conn, err := t.db(ctx)
	if err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "PRAGMA busy_timeout = 500")
	for prevented := 1; err == nil && prevented > 0 && ctx.Err() == nil; {
		var pages, copied int
		if err = conn.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&prevented, &pages, &copied); prevented > 0 {
			_ = backoff.Sleep(ctx, 20*time.Millisecond)
		}
	}
	if ctx.Err() != nil {
		err = nil // then it may have its space
	}
	return errors.Join(err, conn.Close(), db.Close())
}

// errorsWith counts the errors of workers with one of the texts, from now on.
func (t *Target) errorsWith(texts []string) func() int {
	count := func() (n int) {
		for _, text := range texts {
			n += t.Workers.Failed(text)
		}
		return n
	}
	before := count()
	return func() int { return count() - before }
}

// hit reports whether workers have got such an error.
func hit(count func() int) func() bool { return func() bool { return count() > 0 } }

// hits returns how many there were, with those that are on their way.
func hits(count func() int) int {
	await(evidence/10, hit(count))
	return count()
}

func needLimits(t *Target) error {
	if err := needFile(t); err != nil {
		return err
	}
	if err := needWorkers(t); err != nil {
		return err
	}
	return canLimit()
}

// ioTexts are in the errors of stores whose writes fail.
var ioTexts = []string{"I/O error"}

func failWrites(ctx context.Context, t *Target, r *rand.Rand) (_ int, err error) {
	count := t.errorsWith(ioTexts)
	var heal []func() error
	for _, i := range r.Perm(t.Workers.Len())[:1+r.IntN(t.Workers.Len())] {
		pid := t.Workers.PID(i)
		if pid == 0 {
			continue
		}
		lift, err := limitFiles(pid)
		if err != nil {
			continue // it has just ended
		}
		heal = append(heal, lift)
	}
	t.lasting(ctx, t.spell(r), hit(count))
	for _, lift := range heal {
		err = errors.Join(err, lift())
	}
	return hits(count), err
}
