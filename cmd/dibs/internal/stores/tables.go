package stores

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
)

// migrateLimit bounds Migrate.
const migrateLimit = time.Minute

// Migrate makes what the store keeps things in, or brings it up to date, and
// returns a line that says what it did. Any number of processes may do so at once.
func Migrate(ctx context.Context, url string) (string, error) {
	b, rest, err := parse(url)
	if err != nil {
		return "", err
	}
	if b.tables == nil {
		return nothingToMigrate(b, rest), nil
	}
	ctx, cancel := context.WithTimeout(ctx, migrateLimit)
	defer cancel()
	did, err := b.tables(ctx, rest, false)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrUnusable, b.url(rest), err)
	}
	return b.url(rest) + " " + did, nil
}

// Migrations returns what Migrate does as SQL, for a store that is new, without
// asking the store for anything.
func Migrations(url string) (string, error) {
	b, rest, err := parse(url)
	switch {
	case err != nil:
		return "", err
	case b.statements != nil:
		return b.statements(rest)
	case b.tables != nil:
		return fmt.Sprintf("-- %s: the file is made by whoever opens it first; there is nothing to run\n", b.url(rest)), nil
	}
	return "-- " + nothingToMigrate(b, rest) + "\n", nil
}

func nothingToMigrate(b *backend, rest string) string {
	return b.url(rest) + ": nothing to migrate"
}

// openMade opens a store, and makes its tables first if they are missing and may
// be made: who tries dibs out should need nothing else. Those that are there but
// old are left to Migrate, because other programs may be at work on them.
func (b *backend) openMade(ctx context.Context, rest string, s *Store) error {
	err := b.open(ctx, rest, s)
	if err == nil || b.missing == nil || !b.missing(err) {
		return err
	}
	if _, failed := b.tables(ctx, rest, true); failed != nil {
		return fmt.Errorf("%s: the tables are missing or old, and cannot be made: %w; with a user who may create tables, %s",
			s, failed, b.cure(rest))
	}
	return b.open(ctx, rest, s)
}

// openFound opens a store and makes nothing.
func (b *backend) openFound(ctx context.Context, rest string, s *Store) error {
	err := b.open(ctx, rest, s)
	if err == nil || b.missing == nil || !b.missing(err) {
		return err
	}
	return fmt.Errorf("%s: the tables are missing or old; %s", s, b.cure(rest))
}

// cure says what to do about tables that are missing.
func (b *backend) cure(rest string) string {
	return fmt.Sprintf("run dibs migrate --store '%s', or apply the SQL that it prints with --print", b.url(rest))
}

// mayMake returns why tables are not to be made on the way, without anybody having
// asked for it.
func mayMake(onlyNew, told bool, before, want int) error {
	switch {
	case onlyNew && told:
		return errors.New("the URL says migrate=false")
	case onlyNew && before > 0 && before < want:
		return fmt.Errorf("they have version %d, this program wants %d, and others may be using them", before, want)
	}
	return nil
}

// migrated says what a migration did.
func migrated(before, want int) string {
	switch {
	case before == 0:
		return fmt.Sprintf("has its tables now, version %d", want)
	case before < want:
		return fmt.Sprintf("was brought from version %d to %d", before, want)
	}
	return fmt.Sprintf("is up to date, version %d", want)
}

// Check returns what is wrong with the store's backend, the worst first; a store
// that cannot be looked at says so.
func (s *Store) Check(ctx context.Context) ([]dibs.Finding, error) {
	switch c, ok := s.Store.(dibs.Checker); {
	case ok:
		return c.Check(ctx)
	case s.url == "memory:":
		return []dibs.Finding{forMemory}, nil
	}
	return []dibs.Finding{{
		Name: "checker", Severity: dibs.SeverityUnchecked,
		What: "This kind of store does not look at its backend.", Cure: "Look at its README.",
	}}, nil
}
