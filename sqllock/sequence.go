package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// MaxScope is the longest scope of a Sequence, in bytes.
const MaxScope = 255

// Sequence gives numbers that neither repeat nor skip one, for invoices and whatever
// else is counted by law. A number is taken in the transaction that uses it: they are
// committed together, and when the transaction is rolled back or dies, the number was
// never taken.
//
// There is one count for each scope ("invoice 2026", a tenant). It begins when its
// first number is taken. Whoever takes a number has the scope until the transaction
// ends, and everybody else who wants one of that scope waits: so take it last, right
// before the statement that uses it, or take many at once. Where gaps do no harm, the
// database's own sequences cost less.
//
// A Sequence is safe for concurrent use.
type Sequence struct {
	table ownTable
	start int64

	next, raise string
}

// SequenceOptions says what a Sequence is like. nil and the zero value mean the
// defaults.
type SequenceOptions struct {
	// Table that has the counts, after its schema and a point if it must be; "":
	// dibs_sequence.
	Table string
	// Start is the first number of a scope; 0: 1.
	Start int64
}

// NewSequence returns a Sequence. Returns an error that names the option that is
// wrong.
func NewSequence(d Dialect, o *SequenceOptions) (*Sequence, error) {
	if o == nil {
		o = &SequenceOptions{}
	}
	t, err := newTable(d, "SequenceOptions.Table", cmp.Or(o.Table, "dibs_sequence"), [3]string{
		// The row of a scope is changed again and again, and there is room for that
		// on its page.
		`(scope text COLLATE "C" PRIMARY KEY, taken bigint NOT NULL) WITH (fillfactor = 50)`,
		// Bytes, because text is compared without its case or its last spaces.
		`(scope VARBINARY(255) NOT NULL PRIMARY KEY, taken BIGINT NOT NULL) ENGINE = InnoDB`,
		// Beyond 64 bits SQLite would go on with numbers that are not whole.
		`(scope TEXT NOT NULL PRIMARY KEY, taken INTEGER NOT NULL CHECK (typeof(taken) = 'integer')) WITHOUT ROWID`,
	})
	if err != nil {
		return nil, err
	}
	if o.Start < 0 {
		return nil, fmt.Errorf("sqllock: SequenceOptions.Start is %d; it must not be negative", o.Start)
	}
	s := &Sequence{table: t, start: cmp.Or(o.Start, 1)}
	switch {
	case d.mysql():
		// LAST_INSERT_ID(n) is n, and comes back with the answer to the statement.
		s.next = "INSERT INTO " + t.sql + " (scope, taken) VALUES (?, LAST_INSERT_ID(?))" +
			" ON DUPLICATE KEY UPDATE taken = LAST_INSERT_ID(taken + ?)"
		s.raise = "INSERT INTO " + t.sql + " (scope, taken) VALUES (?, ?)" +
			" ON DUPLICATE KEY UPDATE taken = GREATEST(taken, ?)"
	case d == PostgreSQL:
		insert := "INSERT INTO " + t.sql + " AS s (scope, taken) SELECT $1::text, $2::bigint WHERE " + readCommitted +
			" ON CONFLICT (scope) DO UPDATE SET taken = "
		s.next = insert + "s.taken + $3 RETURNING taken"
		s.raise = insert + "greatest(s.taken, excluded.taken)"
	default:
		insert := "INSERT INTO " + t.sql + " AS s (scope, taken) VALUES (?, ?) ON CONFLICT (scope) DO UPDATE SET taken = "
		s.next = insert + "s.taken + ? RETURNING taken"
		s.raise = insert + "max(s.taken, excluded.taken)"
	}
	return s, nil
}

// Schema returns the SQL that makes the table, for those who apply theirs by
// themselves. It does nothing when the table is there.
func (s *Sequence) Schema() string { return s.table.schema }

// Migrate makes the table unless it is there. Many processes may do so at once. Where
// the application may not make tables, somebody else runs what Schema returns; Next
// needs SELECT, INSERT and UPDATE.
func (s *Sequence) Migrate(ctx context.Context, db *sql.DB) error { return s.table.migrate(ctx, db) }

// Next takes the scope's next number. The transaction has to write it somewhere, or
// to be rolled back: if it commits otherwise, there is a gap. A scope is 1 to MaxScope
// bytes of UTF-8 without the zero byte; two are the same when all bytes are.
//
// On PostgreSQL the transaction has to be at read committed, the default. At repeatable
// read or serializable it would conflict with whoever takes a number at the same time
// instead of waiting, so Next returns ErrIsolation, and the transaction goes on. On
// MariaDB with innodb_snapshot_isolation (the default since 11.6) it conflicts when the
// transaction read something before: begin it at read committed there too.
//
// It is one statement. After another error the transaction is to be rolled back; when the
// error is one of Dialect.Conflicted, it may be tried again. Transact does both.
// MySQL and MariaDB may answer a deadlock when several transactions take the first
// number of a scope and one of them is rolled back; Raise(…, 0) beforehand, in a
// transaction of its own, begins a scope.
func (s *Sequence) Next(ctx context.Context, tx Tx, scope string) (int64, error) {
	return s.NextN(ctx, tx, scope, 1)
}

// NextN takes the scope's next n numbers, and returns the first; the others follow it
// without a gap. It is as fast as Next.
func (s *Sequence) NextN(ctx context.Context, tx Tx, scope string, n int) (first int64, err error) {
	st, err := statementsOf(tx)
	if err != nil {
		return 0, err
	}
	return s.take(ctx, st, scope, n)
}

// NextPgx is Next in a transaction of pgx. Only for PostgreSQL.
func (s *Sequence) NextPgx(ctx context.Context, tx pgx.Tx, scope string) (int64, error) {
	return s.NextNPgx(ctx, tx, scope, 1)
}

// NextNPgx is NextN in a transaction of pgx. Only for PostgreSQL.
func (s *Sequence) NextNPgx(ctx context.Context, tx pgx.Tx, scope string, n int) (first int64, err error) {
	if s.table.d != PostgreSQL {
		return 0, errNotPgx(s.table.d)
	}
	return s.take(ctx, pgxStatements{tx}, scope, n)
}

func errNotPgx(d Dialect) error {
	return fmt.Errorf("sqllock: pgx speaks PostgreSQL, and this was made for %v", d)
}

func (s *Sequence) take(ctx context.Context, st statements, scope string, n int) (first int64, err error) {
	if err := validateScope(scope); err != nil {
		return 0, err
	}
	if n < 1 || int64(n) > math.MaxInt64-s.start {
		return 0, fmt.Errorf("sqllock: %d numbers are to be taken; take 1 or more", n)
	}
	last := s.start - 1 + int64(n) // if they are the first
	if s.table.d.mysql() {
		last, err = lastInsertID(ctx, st, s.next, []byte(scope), last, int64(n))
	} else {
		err = st.row(ctx, s.next, []any{scope, last, int64(n)}, &last)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows): // of PostgreSQL, which says so in pgx too
		return 0, fmt.Errorf("%w; no number was taken", ErrIsolation)
	case err != nil:
		return 0, s.table.fault("taking a number", err)
	}
	return last - int64(n) + 1, nil
}

// Raise has the scope go on above last: its next number is last + 1, or higher if more
// were taken already. For numbers that were given before there was a Sequence.
func (s *Sequence) Raise(ctx context.Context, tx Tx, scope string, last int64) error {
	st, err := statementsOf(tx)
	if err != nil {
		return err
	}
	if err := validateScope(scope); err != nil {
		return err
	}
	last = max(last, s.start-1)
	args := []any{scope, last}
	if s.table.d.mysql() {
		args = []any{[]byte(scope), last, last}
	}
	changed, _, err := st.exec(ctx, s.raise, args...)
	switch {
	case err != nil:
		return s.table.fault("raising a scope", err)
	case changed == 0 && s.table.d == PostgreSQL:
		return fmt.Errorf("%w; the scope was not raised", ErrIsolation)
	}
	return nil
}

// CTE returns a part of a WITH that takes numbers, so that they are taken by the
// statement that uses them, and nobody waits for a round trip. Only for PostgreSQL.
// scope and n are placeholders of the statement; n is "" for one number. The part is
// a table "number" with one row, in which first and last are what was taken:
//
//	cte, err := seq.CTE("$1", "")
//	query := "WITH " + cte + ` INSERT INTO invoice (number, customer)
//		SELECT last, $2 FROM number RETURNING number`
//
// A statement that fails takes nothing, in a transaction or without one. One that
// takes numbers and inserts nothing leaves a gap. At another level than read committed
// the statement fails, with an error of PostgreSQL (22P02) whose text names the cure.
func (s *Sequence) CTE(scope, n string) (string, error) {
	if s.table.d != PostgreSQL {
		return "", fmt.Errorf("sqllock: %v cannot insert in a WITH; use Next", s.table.d)
	}
	for _, p := range []string{scope, cmp.Or(n, "$1")} {
		if !dollar.MatchString(p) {
			return "", fmt.Errorf("sqllock: %q is not a placeholder such as $1", p)
		}
	}
	begin, count, first := strconv.FormatInt(s.start, 10), "1", "taken"
	if n != "" {
		count = "greatest(" + n + "::bigint, 0)" // or numbers would be given twice
		begin = fmt.Sprintf("%d + %s", s.start-1, count)
		first = "taken - " + count + " + 1"
	}
	// A text that is no number is how an expression fails in PostgreSQL.
	begin = "CASE WHEN " + readCommitted + " THEN " + begin +
		" ELSE (current_setting('transaction_isolation') || ': begin the transaction at read committed, where a Sequence waits')::bigint END"
	return fmt.Sprintf("number AS (INSERT INTO %s AS s (scope, taken) VALUES (%s::text, %s)"+
		" ON CONFLICT (scope) DO UPDATE SET taken = s.taken + %s RETURNING %s AS first, taken AS last)",
		s.table.sql, scope, begin, count, first), nil
}

var dollar = regexp.MustCompile(`^\$[1-9][0-9]{0,4}$`)

func validateScope(scope string) error {
	switch n := len(scope); {
	case n == 0:
		return errors.New("sqllock: the scope is empty; it must have 1 to 255 bytes")
	case n > MaxScope:
		return fmt.Errorf("sqllock: the scope has %d bytes; it must have 1 to %d", n, MaxScope)
	case !utf8.ValidString(scope) || strings.Contains(scope, "\x00"):
		return errors.New("sqllock: the scope is not UTF-8, or has a zero byte")
	}
	return nil
}
