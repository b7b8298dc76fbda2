// Package sqltest tests what the stores on SQL servers have in common: what they do when the server
// or the network fails, how they lock, prune and migrate, and how transactions settle their keys.
// Each store describes itself and its server in a Kind.
package sqltest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// Store is the interface of the stores on SQL servers.
type Store interface {
	store.Store
	store.Inspector
	store.Pruner
	store.Notifier
	store.Checker
	Close() error
}

// Server is a database server of package servertest.
type Server interface {
	Addr() string
	URL() string
	URLAt(addr string) string
	Query(sql string) [][]string
	Do(sql string) ([][]string, error)
	Kill()
	Restart()
}

// Kind describes a store, and a kind of server that it works on.
type Kind struct {
	// Server is shared by all tests that do not disturb it.
	Server Server
	// Own starts a durable server for one test, with at most that many connections.
	Own func(t testing.TB, connections int) Server
	// Open opens a store as another process would. Stores with one name share their tables, which
	// it makes if they do not exist. A negative pruneEvery means no pruning in the background.
	// The store ends with the test.
	Open func(t testing.TB, url, name string, pruneEvery time.Duration) Store
	// Listen waits until grants are pushed to the store; nil if the store polls.
	Listen func(t testing.TB, s Store)
	// DB opens a pool of the application, which ends with the test.
	DB func(t testing.TB, url string) *sql.DB
	// Apart returns a URL whose connections differ from others, and a query for their numbers.
	Apart func(t testing.TB, server Server) (url, connections string)
	// Database makes a database for one test and returns its URL; nil if the server counts
	// deadlocks for all databases together. Others is the query for the number of other
	// connections to the database, and Deadlocks for the number of deadlocks.
	Database          func() (url string)
	Others, Deadlocks string
	// Skewed opens stores that share tables and a wrong clock. set sets how far that is behind.
	Skewed func(t testing.TB, name string) (open func() Store, set func(back time.Duration))

	// Names writes the names of the store's tables into SQL in place of "@key" and so on.
	Names func(s Store, sql string) string
	// Bytes is the format of a literal of bytes in hexadecimal.
	Bytes string
	// End is the format of the statement that ends a connection, by its number.
	End string
	// NewKey is the format of the statement that begins to make the row of a key.
	NewKey string
	// RunOut is the statement that makes all leases expire.
	RunOut string
	// CommitText is the statement with which the drivers commit.
	CommitText string
	// Random is the expression for a random number.
	Random string
	// Sleep is the format of a query that takes some seconds, as a decimal number.
	Sleep string
	// LockWait is how long a claim waits for a key's row.
	LockWait time.Duration
	// SweepSoon is the statement after which a sweep is due and every idle key is old enough to be
	// deleted. Later makes the last sweep two minutes older.
	SweepSoon, Later string
	// TakeSweep reports whether it is this store's turn to sweep. KeepSweep keeps the turn.
	TakeSweep func(ctx context.Context, s Store) (bool, error)
	KeepSweep func(ctx context.Context, s Store) error
	// Forget deletes the rows of keys that are not in use.
	Forget func(t testing.TB, s Store)
	// Records are the tables of records, with their conditions.
	Records []string
	// Locked and Crowded are the store's errors. Explain is its function explain.
	Locked, Crowded error
	Explain         func(error) error
}

// Run runs the tests that find what they look for in every run.
func (k *Kind) Run(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"LostConnections": k.lostConnections,
		"ServerRestarts":  k.serverRestarts,
		"CutOff":          func(t *testing.T) { k.cutOff(t, 0) },
		"CloseAfterCut":   k.closeAfterCut,
		"Exhausted":       k.exhausted,
		"ClockSetBack":    k.clockSetBack,
		"LockedRow":       k.lockedRow,
		"Deadlocks":       func(t *testing.T) { k.deadlocks(t, 12) },
		"OneSweeps":       k.oneSweeps,
		"PrunesByItself":  k.prunesByItself,
		"FencesOutlive":   k.fencesOutliveTheirKeys,
		"SweepsUnasked":   k.sweepsUnasked,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// Storm runs the tests that find defects by chance, or that need time.
func (k *Kind) Storm(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"CutOff":        func(t *testing.T) { k.cutOff(t, 10*time.Second) },
		"Ended":         k.endedUnderLoad,
		"LockWaitRaces": k.lockWaitRaces,
		"Deadlocks":     func(t *testing.T) { k.deadlocks(t, 64) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// Client returns a client of the store, which ends with the test. Its time limits are long unless
// the options set them.
func Client(t testing.TB, s store.Store, o *dibs.Options) *dibs.Client {
	t.Helper()
	var own dibs.Options
	if o != nil {
		own = *o
	}
	own.Timeout = cmp.Or(own.Timeout, testkit.Limit)
	own.TTL = cmp.Or(own.TTL, 10*time.Minute)
	c, err := dibs.New(s, &own)
	testkit.Must(t, err)
	t.Cleanup(func() {
		// A client with a short limit may have no time to undo its claims. They expire.
		if err := c.Close(); err != nil && own.Timeout == testkit.Limit {
			t.Error(err)
		}
	})
	return c
}

// Ask makes one claim. Its defaults are a TTL and PlaceTTL of a minute, and one permit.
func Ask(t testing.TB, s store.Store, c store.Claim) store.Answer {
	t.Helper()
	if c.Mode != store.Look && c.Mode != store.Reserve && c.TTL == 0 {
		c.TTL = time.Minute
	}
	if c.Mode != store.Try && c.Mode != store.Look && c.PlaceTTL == 0 {
		c.PlaceTTL = time.Minute
	}
	c.Permits, c.Weight = max(c.Permits, 1), max(c.Weight, 1)
	answers := make([]store.Answer, 1)
	testkit.Check(t, s.Claim(t.Context(), []store.Claim{c}, answers))
	return answers[0]
}

// Hold has a new token hold a key.
func Hold(t testing.TB, s store.Store, key string) store.Token {
	t.Helper()
	token := store.NewToken()
	if a := Ask(t, s, store.Claim{Key: store.Key{Name: key}, Token: token}); a.State != store.Granted {
		t.Fatalf("%s: %+v, want that it is granted", key, a)
	}
	return token
}

// Settle ends one lease.
func Settle(t testing.TB, s store.Store, x store.Settlement) error {
	t.Helper()
	errs := make([]error, 1)
	testkit.Check(t, s.Settle(t.Context(), []store.Settlement{x}, errs))
	return errs[0]
}

// Cycle claims a key and settles it, and returns the fence.
func Cycle(t testing.TB, s store.Store, k store.Key) uint64 {
	t.Helper()
	token := store.NewToken()
	a := Ask(t, s, store.Claim{Key: k, Token: token})
	if a.State != store.Granted {
		t.Errorf("%+v, want that it is granted", a)
		return 0
	}
	testkit.Check(t, Settle(t, s, store.Settlement{Key: k, Token: token}))
	return a.Fence
}

// AwaitQueue waits until a token waits for a key.
func AwaitQueue(t testing.TB, s store.Store, key string) {
	t.Helper()
	testkit.Eventually(t, "a waiter for "+key, func() bool {
		return Ask(t, s, store.Claim{Key: store.Key{Name: key}, Mode: store.Look}).Ahead > 0
	})
}

// Work has two clients of the store use it: a queue, a hand-over and kept answers.
func Work(t testing.TB, s Store) {
	t.Helper()
	first, second := Client(t, s, nil), Client(t, s, nil)
	for i := range 4 {
		key := fmt.Sprint("key ", i)
		lease, err := first.Acquire(t.Context(), key, nil)
		testkit.Must(t, err)
		done := make(chan error, 1)
		go func() { done <- second.Do(t.Context(), key, func(context.Context) error { return nil }) }()
		AwaitQueue(t, s, key)
		testkit.Check(t, errors.Join(lease.Release(), <-done))
		got, err := dibs.Once(t.Context(), first, "once "+key, nil, func(context.Context) (int, error) { return i, nil })
		if err != nil || got != i {
			t.Errorf("%d, %v", got, err)
		}
	}
}

// key is the literal of a key without a namespace.
func (k *Kind) key(name string) string { return fmt.Sprintf(k.Bytes, "\x00"+name) }

// lock returns the statement that locks the row of a key.
func (k *Kind) lock(s Store, name string) string {
	return k.Names(s, "SELECT * FROM @key WHERE k="+k.key(name)+" FOR UPDATE")
}

// conn returns a connection of the application.
func (k *Kind) conn(t testing.TB) *sql.Conn {
	t.Helper()
	conn, err := k.DB(t, k.Server.URL()).Conn(t.Context())
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// statements carries statements out.
func statements(t testing.TB, conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, all ...string) {
	t.Helper()
	for _, statement := range all {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// A Wrong is a way to open a store that fails.
type Wrong struct {
	URL  string
	Is   error
	Says string
}

// OpenErrors opens stores in wrong ways. The error says what is wrong, with the cure and without
// the password "secret".
func OpenErrors(t *testing.T, ways map[string]Wrong, open func(url string) (Store, error)) {
	t.Helper()
	for name, way := range ways {
		s, err := open(way.URL)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, way.Is) || !strings.Contains(err.Error(), way.Says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want %v, and %q", name, err, way.Is, way.Says)
		}
		if way.Is != nil && errtype.Of(err) != errtype.Of(way.Is) {
			t.Errorf("%s: error.type of %v is %s, want %s", name, err, errtype.Of(err), errtype.Of(way.Is))
		}
	}
}

// A Setup is a set-up of a server or a store, and what Check finds then.
type Setup struct {
	Do, Undo []string                    // on the server: before the store is opened, and at the end
	Store    func(t testing.TB, s Store) // after the store was opened
	Finds    []Finding
}

// A Finding is the beginning of a store.Finding.
type Finding struct {
	Name     string
	Severity store.Severity
	What     string // a part of it
}

// Found returns one Finding.
func Found(name string, severity store.Severity, what string) []Finding {
	return []Finding{{name, severity, what}}
}

// Check checks stores on a server that each setup changes. It finds what is wrong, and nothing
// more.
func Check(t *testing.T, server Server, setups map[string]Setup, open func(t *testing.T) Store) {
	for name, setup := range setups {
		t.Run(name, func(t *testing.T) {
			defer func() {
				for _, statement := range setup.Undo {
					server.Query(statement)
				}
			}()
			for _, statement := range setup.Do {
				server.Query(statement)
			}
			s := open(t)
			if setup.Store != nil {
				setup.Store(t, s)
			}
			var got []store.Finding
			testkit.Eventually(t, fmt.Sprintf("%+v is found", setup.Finds), func() bool { // a server takes its time
				var err error
				if got, err = s.Check(t.Context()); err != nil {
					t.Fatal(err)
				}
				if len(got) != len(setup.Finds) {
					return false
				}
				for i, want := range setup.Finds {
					if f := got[i]; f.Name != want.Name || f.Severity != want.Severity || !strings.Contains(f.What, want.What) || f.Cure == "" {
						return false
					}
				}
				return true
			})
		})
	}
}
