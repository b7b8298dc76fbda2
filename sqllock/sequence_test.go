package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func newSequence(t testing.TB, b bench, o *SequenceOptions) *Sequence {
	t.Helper()
	s, err := NewSequence(b.d, o)
	testkit.Must(t, err)
	testkit.Must(t, s.Migrate(t.Context(), b.DB))
	return s
}

// next takes numbers in a transaction of their own.
func next(t testing.TB, b bench, s *Sequence, scope string, n int) int64 {
	t.Helper()
	var first int64
	err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) (err error) {
		first, err = s.NextN(ctx, tx, scope, n)
		return err
	})
	testkit.Must(t, err)
	return first
}

func TestSequence(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		s := newSequence(t, b, &SequenceOptions{Table: "Numbers"})
		for _, want := range []int64{1, 2, 3} {
			if got := next(t, b, s, "a", 1); got != want {
				t.Errorf("number %d; want %d", got, want)
			}
		}
		if got := next(t, b, s, "b", 100); got != 1 {
			t.Errorf("the first of another scope is %d", got)
		}
		if got := next(t, b, s, "b", 1); got != 101 {
			t.Errorf("after a hundred comes %d", got)
		}
		own := errors.New("fn's own")
		err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
			for _, want := range []int64{4, 5} {
				if got, err := s.Next(ctx, tx, "a"); err != nil || got != want {
					t.Errorf("number %d, %v; want %d", got, err, want)
				}
			}
			if got, err := s.Next(ctx, tx, "new"); err != nil || got != 1 {
				t.Errorf("number %d, %v; want 1", got, err)
			}
			return own
		})
		if !errors.Is(err, own) {
			t.Error(err)
		}
		if got := next(t, b, s, "a", 1); got != 4 {
			t.Errorf("after a rollback comes %d", got)
		}
		if got := next(t, b, s, "new", 1); got != 1 {
			t.Errorf("after a rollback the first is %d", got)
		}
		from := newSequence(t, b, &SequenceOptions{Table: "Numbers", Start: 1000})
		if got := next(t, b, from, "from", 5); got != 1000 {
			t.Errorf("the first is %d; want 1000", got)
		}
		if got := next(t, b, from, "from", 1); got != 1005 {
			t.Errorf("then comes %d; want 1005", got)
		}
	})
}

func TestSequenceRaise(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		s := newSequence(t, b, nil)
		raise := func(scope string, last int64) {
			t.Helper()
			err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
				return s.Raise(ctx, tx, scope, last)
			})
			testkit.Check(t, err)
		}
		for _, c := range []struct{ last, want int64 }{{4711, 4712}, {4000, 4713}, {4713, 4714}, {5000, 5001}} {
			raise("a", c.last)
			if got := next(t, b, s, "a", 1); got != c.want {
				t.Errorf("above %d comes %d; want %d", c.last, got, c.want)
			}
		}
		raise("b", 0)
		if got := next(t, b, s, "b", 1); got != 1 {
			t.Errorf("a scope that was begun continues with %d", got)
		}
		// Where the numbers end.
		raise("a", math.MaxInt64-1)
		if got := next(t, b, s, "a", 1); got != math.MaxInt64 {
			t.Errorf("the last is %d", got)
		}
		for range 2 {
			err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
				n, err := s.Next(ctx, tx, "a")
				if err == nil {
					t.Errorf("after the last comes %d", n)
				}
				return err
			})
			if err == nil {
				t.Error("numbers without end")
			}
		}
	})
}

// Two scopes are one only if all bytes are the same, and none is SQL.
func TestSequenceScopes(t *testing.T) {
	scopes := []string{
		"a", "A", "a ", " a", "ä", "a\u0308", "aa", "é", "e", "'", "''", "\\", "\\'", `"`, "`", "%", "_", "?", "$1", "NULL", "0", "00",
		"'); DROP TABLE dibs_sequence; --", "x' OR '1'='1", strings.Repeat("x", MaxScope), strings.Repeat("x", MaxScope-1), "\n", "\t",
	}
	onEach(t, func(t *testing.T, b bench) {
		s := newSequence(t, b, nil)
		for range 2 {
			for i, scope := range scopes {
				next(t, b, s, scope, i+1)
			}
		}
		for i, scope := range scopes {
			if got, want := next(t, b, s, scope, 1), int64(2*(i+1)+1); got != want {
				t.Errorf("the scope %q continues with %d; want %d", scope, got, want)
			}
		}
		for _, scope := range []string{"", strings.Repeat("x", MaxScope+1), "a\x00", "\xff"} {
			err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := s.Next(ctx, tx, scope)
				return err
			})
			if err == nil || !strings.Contains(err.Error(), "sqllock: the scope ") {
				t.Errorf("the scope %q: %v", scope, err)
			}
		}
	})
}

// A scope begins once, whichever transaction comes first.
func TestSequenceBegins(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		s := newSequence(t, b, nil)
		for _, scope := range []string{"a", "b"} {
			const callers = 16
			all := newBarrier(callers)
			var mu sync.Mutex
			seen := map[int64]bool{}
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					all.wait(t)
					n := next(t, b, s, scope, 1)
					mu.Lock()
					defer mu.Unlock()
					if seen[n] || n < 1 || n > callers {
						t.Errorf("number %d, after %v", n, seen)
					}
					seen[n] = true
				})
			}
			wg.Wait()
		}
	})
}

func TestSequencePgx(t *testing.T) {
	t.Parallel()
	b := bench{database: databases["postgres"], DB: postgresDB(t)}
	s := newSequence(t, b, nil)
	tx := pgxTx(t, b)
	if n, err := s.Next(t.Context(), tx, "a"); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := s.NextN(t.Context(), tx, "a", 10); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	testkit.Check(t, tx.Rollback(t.Context()))
	if got := next(t, b, s, "a", 1); got != 1 {
		t.Errorf("after a rollback comes %d", got)
	}
	other, err := NewSequence(MariaDB, nil)
	testkit.Must(t, err)
	if _, err := other.Next(t.Context(), tx, "a"); err == nil || !strings.Contains(err.Error(), "MariaDB") {
		t.Error(err)
	}
}

// Numbers are taken by the statement that uses them.
func TestSequenceCTE(t *testing.T) {
	t.Parallel()
	b := bench{database: databases["postgres"], DB: postgresDB(t)}
	s := newSequence(t, b, &SequenceOptions{Start: 10})
	b.invoices(t)
	one, err := s.CTE("$1", "")
	testkit.Must(t, err)
	many, err := s.CTE("$1", "$2")
	testkit.Must(t, err)
	if n := b.number(t, "WITH "+one+" INSERT INTO invoice (number) SELECT last FROM number RETURNING number", "x'; --"); n != 10 {
		t.Errorf("the first is %d", n)
	}
	insert := "WITH " + many + ", made AS (INSERT INTO invoice (number) SELECT generate_series(first, last) FROM number RETURNING number)" +
		" SELECT COALESCE(MIN(number), 0) * 1000 + COUNT(*) FROM made"
	for _, c := range []struct{ n, want int64 }{{3, 11_003}, {0, 0}, {-5, 0}, {1, 14_001}} {
		if got := b.number(t, insert, "x'; --", c.n); got != c.want {
			t.Errorf("%d numbers: %d; want %d", c.n, got, c.want)
		}
	}
	if _, err := b.ExecContext(t.Context(), "WITH "+one+" INSERT INTO invoice (number) SELECT last / 0 FROM number", "x'; --"); err == nil {
		t.Error("a division by zero")
	}
	if got := next(t, b, s, "x'; --", 1); got != 15 {
		t.Errorf("after a statement that failed comes %d", got)
	}
	for _, p := range []string{"", "$0", "1", "$1, 1", "?", "$1::text"} {
		if _, err := s.CTE(p, ""); err == nil {
			t.Errorf("%q is a placeholder", p)
		}
		if _, err := s.CTE("$1", p+" "); err == nil {
			t.Errorf("%q is a placeholder", p)
		}
	}
	for _, d := range []Dialect{MySQL, MariaDB, SQLite} {
		other, err := NewSequence(d, nil)
		testkit.Must(t, err)
		if _, err := other.CTE("$1", ""); err == nil || !strings.Contains(err.Error(), "use Next") {
			t.Errorf("%v: %v", d, err)
		}
	}
}

func TestSequenceErrors(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		if _, err := NewSequence(b.d, &SequenceOptions{Start: -1}); err == nil || !strings.Contains(err.Error(), "SequenceOptions.Start") {
			t.Error(err)
		}
		if _, err := NewSequence(b.d, &SequenceOptions{Table: "a.b.c"}); err == nil || !strings.Contains(err.Error(), "SequenceOptions.Table") {
			t.Error(err)
		}
		if _, err := NewSequence(0, nil); err == nil {
			t.Error("no dialect will do")
		}
		s, err := NewSequence(b.d, &SequenceOptions{Table: "missing"})
		testkit.Must(t, err)
		tx, err := b.BeginTx(t.Context(), nil)
		testkit.Must(t, err)
		defer tx.Rollback()
		if _, err := s.Next(t.Context(), tx, "a"); err == nil || !strings.Contains(err.Error(), "create the table missing with Migrate") {
			t.Error(err)
		}
		for _, n := range []int{0, -1, math.MaxInt64} {
			if _, err := s.NextN(t.Context(), tx, "a", n); err == nil || !strings.Contains(err.Error(), "take 1 or more") {
				t.Errorf("%d numbers: %v", n, err)
			}
		}
		conn, err := b.Conn(t.Context())
		testkit.Must(t, err)
		defer conn.Close()
		for _, tx := range []Tx{b.DB, conn, b, (*pgx.Conn)(nil)} { // b embeds a *sql.DB
			if _, err := s.Next(t.Context(), tx, "a"); err == nil || !strings.Contains(err.Error(), "is not a transaction") {
				t.Errorf("with a %T: %v", tx, err)
			}
		}
	})
}

// Ten processes start at once.
func TestMigrateTogether(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		s, err := NewSequence(b.d, nil)
		testkit.Must(t, err)
		g, err := NewFenceCheck(b.d, nil)
		testkit.Must(t, err)
		all := newBarrier(10)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				all.wait(t)
				testkit.Check(t, errors.Join(s.Migrate(t.Context(), b.DB), g.Migrate(t.Context(), b.DB)))
			})
		}
		wg.Wait()
		if got := next(t, b, s, "a", 1); got != 1 {
			t.Errorf("the first is %d", got)
		}
		// As an operator applies SQL by hand.
		b.must(t, s.Schema())
		b.must(t, g.Schema())
		if got := next(t, b, s, "a", 1); got != 2 {
			t.Errorf("the second is %d", got)
		}
	})
}

// A transaction that wants a number waits for the one that took the last; other scopes do
// not.
func TestSequenceWaits(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		s := newSequence(t, b, nil)
		next(t, b, s, "a", 1)
		next(t, b, s, "b", 1)
		taken, commit := make(chan struct{}), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := s.Next(ctx, tx, "a")
				close(taken)
				<-commit
				return err
			})
		}()
		<-taken
		if b.d != SQLite { // which has one lock for all
			if got := next(t, b, s, "b", 1); got != 2 {
				t.Errorf("another scope continues with %d", got)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := Transact(ctx, b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
			n, err := s.Next(ctx, tx, "a")
			if err == nil {
				t.Errorf("number %d while the last is not committed", n)
			}
			return err
		})
		if err == nil || errors.Is(err, ErrUnknown) {
			t.Errorf("waiting ends with %v", err)
		}
		close(commit)
		testkit.Check(t, <-done)
		if got := next(t, b, s, "a", 1); got != 3 {
			t.Errorf("then comes %d; want 3", got)
		}
	})
}
