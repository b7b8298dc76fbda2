package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// Here a wait ends exactly when it is to: the time is simulated, and the server a fake
// that waits as long as its statement says.

// waitsExactly fails the test unless a lock that is always held is waited for so long.
func waitsExactly(t *testing.T, wait time.Duration, lock func() error) {
	t.Helper()
	start := time.Now()
	err := lock()
	took := time.Since(start)
	held, ok := errors.AsType[*HeldError](err)
	// A server may count in milliseconds, and rounds up.
	if !ok || held.Waited != took || took < wait || took > wait+time.Millisecond {
		t.Errorf("Wait %v: %v after %v", wait, err, took)
	}
}

// someWaits are longer and shorter than what a server counts in, and than waitSlice.
var someWaits = []time.Duration{time.Microsecond, 20 * time.Millisecond, 1700 * time.Millisecond, 150 * time.Second}

func TestAdvisoryWaitsExactly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &fakeServer{query: func(query string, args []driver.NamedValue) ([]driver.Value, error) {
			if !strings.Contains(query, "lock_timeout") {
				return []driver.Value{false}, nil // nothing to undo
			}
			ms, err := strconv.Atoi(args[len(args)-1].Value.(string))
			if err != nil {
				return nil, err
			}
			time.Sleep(time.Duration(ms) * time.Millisecond)
			return nil, stateError("55P03")
		}}
		db := server.open(t)
		a := &Advisory{db: db, sessions: sessions[AdvisoryKey]{db: db, functions: &advisoryFunctions{}, heartbeat: time.Second}}
		for _, wait := range someWaits {
			waitsExactly(t, wait, func() error {
				_, err := a.Lock(t.Context(), IntKey(7), &LockOptions{Wait: wait})
				return err
			})
		}
	})
}

// MySQL counts in whole seconds, and rounds: a wait is rounded up to them.
func TestNamedWaitsExactly(t *testing.T) {
	t.Parallel()
	for _, maria := range []bool{true, false} {
		t.Run(fmt.Sprint("MariaDB ", maria), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				server := &fakeServer{query: func(query string, _ []driver.NamedValue) ([]driver.Value, error) {
					asked++
					_, rest, _ := strings.Cut(query, "', ")
					text, rest, _ := strings.Cut(rest, ")")
					seconds, err := strconv.ParseFloat(text, 64)
					if !maria {
						seconds = math.Round(seconds)
					}
					time.Sleep(time.Duration(seconds * float64(time.Second)))
					if rest != "" { // CONNECTION_ID()
						return []driver.Value{int64(0), int64(7)}, err
					}
					return []driver.Value{int64(0)}, err
				}}
				db := server.open(t)
				p := sessions[string]{db: db, functions: &namedFunctions{db: db, maria: maria}, heartbeat: time.Second}
				for _, wait := range someWaits {
					asked = 0
					whole := wait
					if !maria {
						whole = (wait + time.Second - 1).Truncate(time.Second)
					}
					waitsExactly(t, whole, func() error {
						_, err := p.lock(t.Context(), []string{"a"}, request{wait: wait, since: time.Now()})
						return err
					})
					if asked > 4 {
						t.Errorf("Wait %v: the server was asked %d times", wait, asked)
					}
				}
			})
		})
	}
}

// The statements of a RowLock's Wait.
func TestLockRowsWait(t *testing.T) {
	t.Parallel()
	for d, want := range map[Dialect][]string{
		// The wait for each lock, and, a little longer, for all; then what it was.
		PostgreSQL: {"SELECT current_setting('lock_timeout')… 1250 1300", "SELECT \"id\"…FOR UPDATE 1", "SELECT set_config… 0 5000"},
		MariaDB:    {"SET STATEMENT max_statement_time = 1.250000, innodb_lock_wait_timeout = 3 FOR…FOR UPDATE 1"},
		SQLite:     {"PRAGMA busy_timeout", "PRAGMA busy_timeout = 1250", "UPDATE…", "PRAGMA busy_timeout = 5000", "SELECT `id`… 1"},
	} {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			var said []string
			server := &fakeServer{
				query: func(query string, args []driver.NamedValue) ([]driver.Value, error) {
					for _, a := range args {
						query += fmt.Sprint(" ", a.Value)
					}
					said = append(said, query)
					switch {
					case strings.HasPrefix(query, "SELECT current_setting"):
						return []driver.Value{"0", "5000", "", ""}, nil
					case strings.HasPrefix(query, "SELECT set_config"):
						return []driver.Value{"", ""}, nil
					case strings.HasPrefix(query, "PRAGMA"):
						return []driver.Value{int64(5000)}, nil
					case strings.Contains(query, "transaction_isolation"):
						return []driver.Value{int64(1), "read committed"}, nil
					}
					return []driver.Value{int64(1)}, nil
				},
				exec: func(query string) error {
					said = append(said, query)
					return nil
				},
			}
			tx := beginTx(t, server.open(t))
			ids, err := LockRows(t.Context(), d, tx, &RowLock{Wait: 1250 * time.Millisecond}, "account", "id", 1)
			if err != nil || !slices.Equal(ids, []int{1}) {
				t.Errorf("%v, %v", ids, err)
			}
			if !slices.EqualFunc(said, want, matches) {
				t.Errorf("the server got %q; want %q", said, want)
			}
		})
	}
}

// matches reports whether the text is the pattern, in which … stands for any text.
func matches(text, pattern string) bool {
	begin, end, any := strings.Cut(pattern, "…")
	return text == pattern || any && strings.HasPrefix(text, begin) && strings.HasSuffix(text, end)
}

// SQLite's lock of a transaction is waited for exactly as long, too.
func TestUpdateWaitsExactly(t *testing.T) {
	t.Parallel()
	const wait = 1250 * time.Millisecond
	for d, refused := range map[Dialect]error{SQLite: codeError(5)} {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				asked, timeout := 0, time.Duration(0)
				server := &fakeServer{
					query: func(query string, _ []driver.NamedValue) ([]driver.Value, error) {
						if query == "PRAGMA busy_timeout" {
							return []driver.Value{int64(5000)}, nil
						}
						asked++
						return nil, refused
					},
					exec: func(query string) error {
						if text, ok := strings.CutPrefix(query, "PRAGMA busy_timeout = "); ok {
							ms, err := strconv.Atoi(text)
							timeout = time.Duration(ms) * time.Millisecond
							return err
						}
						if query == "BEGIN IMMEDIATE" {
							asked++
							time.Sleep(timeout)
							return refused
						}
						return nil
					},
				}
				o := bench{database: database{d: d}}.accountOptions()
				o.Lock = RowLock{Wait: wait}
				start := time.Now()
				_, err := newRow(t, d, o).Update(t.Context(), server.open(t), func(context.Context, *sql.Tx, *account) error {
					t.Error("it has the row")
					return nil
				}, 1)
				took := time.Since(start)
				held, ok := errors.AsType[*RowHeldError](err)
				if !ok || !errors.Is(err, dibs.ErrHeld) || held.Waited != wait || took != wait {
					t.Errorf("after %v: %v", took, err)
				}
				if asked != 1 {
					t.Errorf("it was asked %d times", asked)
				}
			})
		})
	}
}

// A caller that waits is not a statement in progress for longer than a second, however
// long it waits, and for whichever of its keys.
func TestAdvisoryWaitsInShortStatements(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(context.Context, *Advisory) error{
		"Lock": func(ctx context.Context, a *Advisory) error { _, err := a.Lock(ctx, IntKey(2), nil); return err },
		"Lock, shared": func(ctx context.Context, a *Advisory) error {
			_, err := a.Lock(ctx, IntKey(2), &LockOptions{Shared: true})
			return err
		},
		"Lock and a Wait": func(ctx context.Context, a *Advisory) error {
			_, err := a.Lock(ctx, IntKey(2), &LockOptions{Wait: time.Hour})
			return err
		},
		"LockAll": func(ctx context.Context, a *Advisory) error {
			_, err := a.LockAll(ctx, []AdvisoryKey{IntKey(1), IntKey(2)}, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				waits := 0
				server := &fakeServer{query: func(query string, args []driver.NamedValue) ([]driver.Value, error) {
					if !strings.Contains(query, "lock_timeout") {
						return []driver.Value{true}, nil
					}
					if args[0].Value == int64(1) {
						return []driver.Value{true}, nil // the first of two keys is free
					}
					waits++
					ms, err := strconv.Atoi(args[len(args)-1].Value.(string))
					if err != nil || ms < 1 || ms > 1000 {
						t.Errorf("a statement waits %v ms, %v", args[len(args)-1].Value, err)
					}
					time.Sleep(time.Duration(ms) * time.Millisecond)
					return nil, stateError("55P03")
				}}
				db := server.open(t)
				a := &Advisory{db: db, sessions: sessions[AdvisoryKey]{db: db, functions: &advisoryFunctions{}, heartbeat: time.Second}}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				if err := lock(ctx, a); err == nil || waits < 500 {
					t.Errorf("%v, after %d statements", err, waits)
				}
			})
		})
	}
}

// An index is created while a caller waits, although it waits for all earlier statements.
func TestAdvisoryWaiterHoldsUpNoIndex(t *testing.T) {
	t.Parallel()
	a := newAdvisory(t, nil)
	db, key := a.db, ownKey()
	for _, query := range []string{"CREATE TABLE booking (seat int)", "INSERT INTO booking VALUES (1)"} {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	held, err := a.Lock(t.Context(), key, nil)
	testkit.Must(t, err)
	got := make(chan error, 1)
	go func() {
		l, err := a.Lock(context.Background(), key, nil)
		if err == nil {
			err = l.Unlock()
		}
		got <- err
	}()
	testkit.Eventually(t, "it waits", func() bool { return advisoryLocks(t, key) == 2 })
	conn, err := db.Conn(t.Context())
	testkit.Must(t, err)
	defer conn.Close()
	// A statement of a minute would still be in progress when this is over.
	for _, query := range []string{"SET lock_timeout = '30s'", "CREATE INDEX CONCURRENTLY seats ON booking (seat)", "REINDEX INDEX CONCURRENTLY seats"} {
		if _, err := conn.ExecContext(t.Context(), query); err != nil {
			t.Errorf("%s: %v", query, err)
		}
	}
	if len(got) > 0 {
		t.Error("it does not wait any more")
	}
	testkit.Check(t, errors.Join(held.Unlock(), <-got))
}

// A limit for statements is none for a wait, which has its own.
func TestNamedOutlastsMaxStatementTime(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *servertest.MariaDBServer) {
		dsn := ownDSN(s)
		holder := newNamed(t, dsn, nil)
		limited := dsn + "?max_statement_time=0.1"
		if !holder.sessions.functions.(*namedFunctions).maria {
			limited = dsn + "?max_execution_time=100"
		}
		n := newNamed(t, limited, nil)
		for name, lock := range map[string]func(*LockOptions) (*Lock, error){
			"Lock":    func(o *LockOptions) (*Lock, error) { return n.Lock(t.Context(), "a", o) },
			"LockAll": func(o *LockOptions) (*Lock, error) { return n.LockAll(t.Context(), []string{"a", "b"}, o) },
		} {
			held, err := holder.Lock(t.Context(), "a", nil)
			testkit.Must(t, err)
			// MySQL is asked to wait for whole seconds.
			if _, err := lock(&LockOptions{Wait: 1100 * time.Millisecond}); !errors.Is(err, dibs.ErrHeld) {
				t.Errorf("%s: %v", name, err)
			}
			got := make(chan error, 1)
			go func() {
				l, err := lock(nil)
				if err == nil {
					err = l.Unlock()
				}
				got <- err
			}()
			testkit.Eventually(t, "it waits", func() bool { return len(waiters(s, n)) == 1 })
			if err := errors.Join(held.Unlock(), <-got); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
