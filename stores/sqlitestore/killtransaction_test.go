package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// stoppable makes connections that can be stopped around each step of a transaction.
type stoppable struct {
	driver.Connector
	after func() // is called after a commit
}

func (s stoppable) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return stoppableConn{conn.(moderncConn), s}, nil
}

type stoppableConn struct {
	moderncConn
	s stoppable
}

func (c stoppableConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	failpoint.Reach("before BEGIN")
	tx, err := c.moderncConn.BeginTx(ctx, o)
	failpoint.Reach("after BEGIN")
	return stoppableTx{tx, c.s}, err
}

// RegisterCommitHook: SQLite calls the hook when it is about to write a commit.
func (c stoppableConn) RegisterCommitHook(hook modernc.CommitHookFn) {
	if hook == nil {
		c.moderncConn.RegisterCommitHook(nil)
		return
	}
	c.moderncConn.RegisterCommitHook(func() int32 {
		failpoint.Reach("inside COMMIT")
		return hook()
	})
}

type stoppableTx struct {
	driver.Tx
	s stoppable
}

func (t stoppableTx) Commit() error {
	failpoint.Reach("before COMMIT")
	err := t.Tx.Commit()
	failpoint.Reach("after COMMIT")
	t.s.after()
	return err
}

// childBook books once under a key, prints the answer, and can be stopped in between.
func childBook(args []string) error {
	var follows atomic.Bool
	clock := hostClock
	clock.monotonic = func() int64 {
		if follows.Load() {
			failpoint.Reach("after the BEGIN of what follows")
		}
		return hostClock.monotonic()
	}
	s, err := open(args[0], &Options{Shared: true, LockWait: testkit.Limit, PruneEvery: -1}, clock)
	if err != nil {
		return err
	}
	s.Notify(func(store.Token, store.Answer) { failpoint.Reach("while a waiter is woken") })
	source, err := modernc.NewConnector("file:" + filepath.ToSlash(s.names.full) + "?_txlock=immediate&_pragma=synchronous(full)")
	if err != nil {
		return err
	}
	db := sql.OpenDB(stoppable{source, func() { follows.Store(true) }})
	c, err := dibs.New(s, ledgerClient)
	if err != nil {
		return err
	}
	entry, err := dibs.OnceIn(context.Background(), c, s.Transactions(db), "k", &dibs.OnceOptions{TTL: killedTTL}, func(ctx context.Context) (string, error) {
		failpoint.Reach("after the claim")
		if err := queueHere(s); err != nil {
			return "", err
		}
		tx, err := Begin(ctx)
		if err != nil {
			return "", err
		}
		entry, err := bookEntry(ctx, tx, "k")
		failpoint.Reach("after the entry")
		return entry, err
	})
	if err != nil {
		return err
	}
	failpoint.Reach("before the answer")
	fmt.Fprintln(os.Stdout, entry)
	failpoint.Reach("after the answer")
	select {}
}

// TestKilledInATransaction kills a process around each step of a transaction of the
// application's that settles a key. The key ends with one row and one answer, the same
// each time.
func TestKilledInATransaction(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		point     string
		blocks    bool
		committed bool
	}{
		{point: "after the claim"},
		{point: "before BEGIN", blocks: true},
		{point: "after BEGIN", blocks: true},
		{point: "after the entry", blocks: true},
		{point: "before COMMIT", blocks: true},
		{point: "inside COMMIT", blocks: true},
		{point: "after COMMIT", blocks: true, committed: true},
		{point: "after the BEGIN of what follows", blocks: true, committed: true},
		{point: "while a waiter is woken", blocks: true, committed: true},
		{point: "before the answer", committed: true},
		{point: "after the answer", committed: true},
	} {
		t.Run(test.point, func(t *testing.T) {
			t.Parallel()
			clock := standingClock(t)
			s, db, c := openLedger(t, testFile(t), clock.clock())
			printed := killAt(t, s, "book", test.point, test.blocks)
			rows := func() (n int, entry string) {
				t.Helper()
				testkit.Must(t, db.QueryRowContext(t.Context(), "SELECT count(*), coalesce(max(entry), '') FROM ledger").Scan(&n, &entry))
				return n, entry
			}
			n, entry := rows()
			if test.committed != (n == 1) || n > 1 || printed != "" && printed != entry {
				t.Errorf("the child printed %q, and the ledger has %d rows, %q", printed, n, entry)
			}
			if test.point == "after the answer" && printed == "" {
				t.Error("the child has printed no answer")
			}
			if test.committed {
				wantState(t, "the key", claimOne(t, s, asked("k")), store.Done)
			} else {
				wantUntilItsEnd(t, s, clock, killedTTL)
			}
			for range 3 {
				answer, err := bookOnce(c, s.Transactions(db), "k", time.Minute)
				if n, entry := rows(); err != nil || n != 1 || entry != answer || printed != "" && answer != printed {
					t.Errorf("the answer is %q, %v; the child printed %q, and the ledger has %d rows, %q", answer, err, printed, n, entry)
				}
			}
		})
	}
}

// ledgerClient are the options of clients beside a ledger. Their keys are those of lock. No
// machine is too slow for their calls.
var ledgerClient = &dibs.Options{Namespace: "test", Timeout: testkit.Limit}

// openLedger makes a ledger in a shared file.
func openLedger(t testing.TB, path string, clock clock) (*Store, *sql.DB, *dibs.Client) {
	t.Helper()
	s := openTest(t, path, &Options{Shared: true}, clock)
	db, err := s.OpenDB()
	testkit.Must(t, err)
	c, err := dibs.New(s, ledgerClient)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, errors.Join(c.Close(), db.Close())) })
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS ledger (k TEXT NOT NULL, entry TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return s, db, c
}

// bookOnce books a unique entry, and returns it.
func bookOnce(c *dibs.Client, t store.Transactor, k string, ttl time.Duration) (string, error) {
	return OnceTx(context.Background(), c, t, k, &dibs.OnceOptions{TTL: ttl}, func(ctx context.Context, tx *sql.Tx) (string, error) {
		return bookEntry(ctx, tx, k)
	})
}

func bookEntry(ctx context.Context, tx *sql.Tx, k string) (string, error) {
	entry := store.NewToken().ID()
	_, err := tx.ExecContext(ctx, "INSERT INTO ledger (k, entry) VALUES (?, ?)", k, entry)
	return entry, err
}
