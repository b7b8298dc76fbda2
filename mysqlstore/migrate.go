package mysqlstore

import (
	"context"
	"database/sql"
	_ "embed" // the schema
	"fmt"
	"hash/fnv"
	"strings"
	"time"
)

//go:embed sql/001_schema.sql
var schemaSQL string

// version is that of the tables that this program wants.
const version = 1

// Migration takes a store's tables from one version to the next.
type Migration struct {
	// Version is the one after it.
	Version int
	// SQL is what it takes: statements with a semicolon and the end of the line
	// behind each. They can be run again when some of them have been run already.
	SQL string
}

// Migrations returns what there is to run for a new store, in order, for those who
// do so themselves, in the database that the store is to be in. Of the options it
// uses Prefix.
func Migrations(o *Options) ([]Migration, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return []Migration{{Version: version, SQL: namer{options.Prefix}.sql(schemaSQL)}}, nil
}

// DB is what Migrate works on: a *sql.DB.
type DB interface {
	Conn(ctx context.Context) (*sql.Conn, error)
}

// lockLimit is how long a migration waits for another one.
const lockLimit = 30 * time.Second

// Migrate makes the store's tables in the database that the connection is for. When
// they are there, it does nothing and needs no rights but to read them; many may call it at once, and one that was cut short is made up for by
// the next. Of the options it uses Prefix.
//
// It returns ErrNewer when the tables are newer than this program, and otherwise
// what Open does.
func Migrate(ctx context.Context, db DB, o *Options) error {
	all, err := Migrations(o)
	if err != nil {
		return err
	}
	options, err := o.withDefaults()
	if err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return explain(err)
	}
	defer conn.Close()
	return explain(namer{options.Prefix}.migrate(ctx, conn, all))
}

func (n namer) migrate(ctx context.Context, conn *sql.Conn, all []Migration) (err error) {
	if have, err := n.version(ctx, conn); err != nil || have == version {
		return err
	}
	lock, err := n.lock(ctx, conn) // one at a time
	if err != nil {
		return err
	}
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, fmt.Sprintf("SELECT GET_LOCK('%s',%d)", lock, int(lockLimit.Seconds()))).Scan(&got); err != nil {
		return err
	}
	if got.Int64 != 1 {
		return fmt.Errorf("mysqlstore: another migration has gone on for %v; see SHOW PROCESSLIST", lockLimit)
	}
	defer func() {
		unlocking, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialLimit)
		defer cancel()
		// Should that fail, the lock ends with the connection.
		_, _ = conn.ExecContext(unlocking, fmt.Sprintf("DO RELEASE_LOCK('%s')", lock))
	}()
	// Where connections do not commit by themselves, what was there before the lock
	// would be seen for good, and the last of it never be there for others.
	if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil {
		return err
	}
	have, err := n.version(ctx, conn)
	if err != nil {
		return err
	}
	if have > version {
		return tooNew(have)
	}
	for _, m := range all[have:] {
		for statement := range strings.SplitSeq(m.SQL, ";\n") {
			if blank(statement) {
				continue
			}
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("mysqlstore: migration %d: %w", m.Version, err)
			}
		}
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return err
}

// blank reports whether there is nothing but comments.
func blank(sql string) bool {
	for line := range strings.Lines(sql) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			return false
		}
	}
	return true
}

// lock returns the name of the migrations' lock, which is one for the server.
func (n namer) lock(ctx context.Context, conn *sql.Conn) (string, error) {
	var database sql.NullString
	if err := conn.QueryRowContext(ctx, "SELECT DATABASE()").Scan(&database); err != nil {
		return "", err
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s.%s", database.String, n.prefix)
	return fmt.Sprintf("dibs migration %016x", h.Sum64()), nil
}

// asker is a connection, a pool or a transaction.
type asker interface {
	QueryRowContext(ctx context.Context, sql string, args ...any) *sql.Row
}

// version returns that of the tables there are, 0 for none.
func (n namer) version(ctx context.Context, db asker) (v int, err error) {
	var there int
	err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema=DATABASE() AND table_name='"+n.table("meta")+"'").Scan(&there)
	if err != nil || there == 0 {
		return 0, err
	}
	var have sql.NullInt64
	err = db.QueryRowContext(ctx, n.sql("SELECT MAX(version) FROM @meta")).Scan(&have)
	return int(have.Int64), err
}

func tooNew(have int) error {
	return fmt.Errorf("%w: they have version %d, it knows %d; use a newer program", ErrNewer, have, version)
}
