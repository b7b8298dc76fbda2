package stores

import (
	"context"
	"errors"
	"fmt"
	neturl "net/url"
	"time"

	"github.com/dibs-go/dibs"
)

// migrateLimit bounds Migrate.
const migrateLimit = time.Minute

// Migrate makes what the store keeps things in, if it is missing, and returns a line
// that says what it did. Any number of processes may do so at once.
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
	did, err := b.tables(ctx, rest)
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
// be made: who tries dibs out should need nothing else.
func (b *backend) openMade(ctx context.Context, rest string, s *Store) error {
	err := b.open(ctx, rest, s)
	if err == nil || b.missing == nil || !b.missing(err) {
		return err
	}
	if failed := b.makeTables(ctx, rest); failed != nil {
		return fmt.Errorf("%s: the tables are missing, and cannot be made: %w; with a user who may create tables, %s",
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
	return fmt.Errorf("%s: the tables are missing; %s", s, b.cure(rest))
}

// cure says what to do about tables that are missing.
func (b *backend) cure(rest string) string {
	return fmt.Sprintf("run dibs migrate --store '%s', or apply the SQL that it prints with --print", b.url(rest))
}

// makeTables makes missing tables, unless the URL forbids it.
func (b *backend) makeTables(ctx context.Context, rest string) error {
	u, err := neturl.Parse(b.scheme + ":" + rest)
	if err == nil && u.Query().Has("migrate") { // with true the tables would be there
		return errors.New("the URL says migrate=false")
	}
	if err == nil {
		_, err = b.tables(ctx, rest)
	}
	return err
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
