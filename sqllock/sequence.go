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
)

// MaxScope is the longest scope of a Sequence, in bytes.
const MaxScope = 255

// Sequence gives numbers that never repeat and have no gaps, for invoices and other
// numbers that the law counts. A number is taken in the transaction that uses it: both
// commit together, and after a rollback or a crash the number was never taken.
//
// Each scope ("invoice 2026", a tenant) has its own count, which begins with its first
// number. A transaction that takes a number holds the scope until it ends, and others
// that want a number of this scope wait. So take the number last, directly before the
// statement that uses it, or take many at once. If gaps are allowed, the database's own
// sequences cost less.
//
// A Sequence is safe for concurrent use.
type Sequence struct {
	table   ownTable
	start   int64
	observe Observer

	next, raise string
}

// SequenceOptions configures a Sequence. nil and the zero value mean the defaults.
type SequenceOptions struct {
	// Table is the table of the counts, with its schema and a dot if needed. "":
	// dibs_sequence.
	Table string
	// Start is the first number of a scope. 0: 1.
	Start int64
	// Observe is called when Next, NextN or Raise got the scope or failed. Waited has the wait for
	// the transaction before. The end is not seen (Event.InTx). Default: none.
	Observe Observer
}

// NewSequence returns a Sequence, or an error that names the wrong option.
func NewSequence(d Dialect, o *SequenceOptions) (*Sequence, error) {
	if o == nil {
		o = &SequenceOptions{}
	}
	t, err := newTable(d, "SequenceOptions.Table", cmp.Or(o.Table, "dibs_sequence"), [3]string{
		// The fillfactor leaves room on the page, because a scope's row changes often.
		`(scope text COLLATE "C" PRIMARY KEY, taken bigint NOT NULL) WITH (fillfactor = 50)`,
		// Bytes, because MySQL compares text without its case and its trailing spaces.
		`(scope VARBINARY(255) NOT NULL PRIMARY KEY, taken BIGINT NOT NULL) ENGINE = InnoDB`,
		// Beyond 64 bits SQLite would continue with floating-point numbers.
		`(scope TEXT NOT NULL PRIMARY KEY, taken INTEGER NOT NULL CHECK (typeof(taken) = 'integer')) WITHOUT ROWID`,
	})
	if err != nil {
		return nil, err
	}
	if o.Start < 0 {
		return nil, fmt.Errorf("sqllock: SequenceOptions.Start is %d; it must not be negative", o.Start)
	}
	s := &Sequence{table: t, start: cmp.Or(o.Start, 1), observe: o.Observe}
	switch {
	case d.mysql():
		// LAST_INSERT_ID(n) is n, and the statement's answer contains it.
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

// Schema returns the SQL that creates the table if it does not exist, for applications
// that run their migrations themselves.
func (s *Sequence) Schema() string { return s.table.schema }

// Migrate creates the table if it does not exist. Several processes may call it at once.
// Next needs the rights SELECT, INSERT and UPDATE.
func (s *Sequence) Migrate(ctx context.Context, db *sql.DB) error { return s.table.migrate(ctx, db) }

// Next takes the scope's next number. The transaction must write the number or roll back;
// otherwise there is a gap. A scope is 1 to MaxScope bytes of UTF-8 without zero bytes.
// Scopes are compared byte by byte.
//
// On PostgreSQL the transaction must be at read committed, the default. At repeatable
// read or serializable it would conflict instead of waiting, so Next returns
// ErrIsolation, and the transaction can go on. MariaDB with innodb_snapshot_isolation
// (the default since 11.6) conflicts when the transaction has read before: use read
// committed there, too.
//
// Next is one statement. After other errors, roll the transaction back. If
// Dialect.Conflicted reports true, try it again; Transact does both. MySQL and MariaDB
// may report a deadlock when several transactions take the first number of a scope and
// one rolls back. To avoid that, begin the scope with Raise(…, 0) in its own transaction.
func (s *Sequence) Next(ctx context.Context, tx Tx, scope string) (int64, error) {
	return s.NextN(ctx, tx, scope, 1)
}

// NextN takes the scope's next n numbers and returns the first. It costs as much as Next.
func (s *Sequence) NextN(ctx context.Context, tx Tx, scope string, n int) (first int64, err error) {
	st, err := statementsOf(s.table.d, tx)
	if err != nil {
		return 0, err
	}
	if err := validateScope(scope); err != nil {
		return 0, err
	}
	if n < 1 || int64(n) > math.MaxInt64-s.start {
		return 0, fmt.Errorf("sqllock: cannot take %d numbers; take 1 or more", n)
	}
	seen := observed(s.observe, scope)
	defer func() { seen.inTx(ctx, err) }()
	last := s.start - 1 + int64(n) // if they are the first
	if s.table.d.mysql() {
		last, err = lastInsertID(ctx, st, s.next, []byte(scope), last, int64(n))
	} else {
		err = st.row(ctx, s.next, []any{scope, last, int64(n)}, &last)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows): // pgx.ErrNoRows, too
		return 0, fmt.Errorf("%w; no number was taken", ErrIsolation)
	case err != nil:
		return 0, s.table.fault("take a number", err)
	}
	return last - int64(n) + 1, nil
}

// Raise sets the count to at least last: the next number is last + 1, or higher if more
// were taken. Use it to continue numbers that were given before the Sequence existed.
func (s *Sequence) Raise(ctx context.Context, tx Tx, scope string, last int64) (err error) {
	st, err := statementsOf(s.table.d, tx)
	if err != nil {
		return err
	}
	if err := validateScope(scope); err != nil {
		return err
	}
	seen := observed(s.observe, scope)
	defer func() { seen.inTx(ctx, err) }()
	last = max(last, s.start-1)
	args := []any{scope, last}
	if s.table.d.mysql() {
		args = []any{[]byte(scope), last, last}
	}
	changed, _, err := st.exec(ctx, s.raise, args...)
	switch {
	case err != nil:
		return s.table.fault("raise a scope", err)
	case changed == 0 && s.table.d == PostgreSQL:
		return fmt.Errorf("%w; the scope was not raised", ErrIsolation)
	}
	return nil
}

// CTE returns a part of a WITH clause, so that the statement that uses numbers also takes
// them. That saves a round trip while the scope is locked. Only for PostgreSQL. scope and
// n are placeholders of the statement; n "" means one number. The part is a table
// "number" with one row and the columns first and last:
//
//	cte, err := seq.CTE("$1", "")
//	query := "WITH " + cte + ` INSERT INTO invoice (number, customer)
//		SELECT last, $2 FROM number RETURNING number`
//
// A statement that fails takes no number, also outside a transaction. A statement that
// inserts nothing leaves a gap. At a level other than read committed the statement fails
// with PostgreSQL's error 22P02, whose text says what to do.
func (s *Sequence) CTE(scope, n string) (string, error) {
	if s.table.d != PostgreSQL {
		return "", fmt.Errorf("sqllock: %v does not support INSERT in a WITH clause; use Next", s.table.d)
	}
	for _, p := range []string{scope, cmp.Or(n, "$1")} {
		if !dollar.MatchString(p) {
			return "", fmt.Errorf("sqllock: %q is not a placeholder such as $1", p)
		}
	}
	begin, count, first := strconv.FormatInt(s.start, 10), "1", "taken"
	if n != "" {
		count = "greatest(" + n + "::bigint, 0)" // a negative n would repeat numbers
		begin = fmt.Sprintf("%d + %s", s.start-1, count)
		first = "taken - " + count + " + 1"
	}
	// Casting a text that is not a number makes the statement fail.
	begin = "CASE WHEN " + readCommitted + " THEN " + begin +
		" ELSE (current_setting('transaction_isolation') || ': begin the transaction at read committed')::bigint END"
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
