package sqlitestore

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// Children are killed at named points here: around each step of a transaction of the
// store's own, and of one of the application's. What SQLite does between the first byte
// of a commit in its log and the last one has no names; the torture is for that.

const (
	// killedTTL is the lease of a child that is killed, and renewedTTL what it is
	// prolonged to. Store time is moved to their ends.
	killedTTL  = time.Hour
	renewedTTL = 2 * time.Hour
)

// standingClock is the host's clock, but that it stops until it is moved. Where
// others have written since, store time is that of what they wrote.
func standingClock(t *testing.T) *testClock {
	t.Helper()
	boot, err := hostClock.boot()
	testkit.Must(t, err)
	return newTestClock(boot, time.Duration(hostClock.monotonic())*time.Microsecond)
}

// moveOn moves store time on, from what it is for the store.
func moveOn(t *testing.T, s *Store, c *testClock, d time.Duration) {
	t.Helper()
	testkit.Must(t, s.work(t.Context(), func(tx *transaction) { c.uptime.Store(tx.now - tx.offset + engine.Micros(d)) }))
}

// killAt kills a child at the point and returns what it printed. A claim that is made
// while the child stands there waits until the child is dead if the child blocks it, and does
// not wait otherwise.
func killAt(t *testing.T, s *Store, child, point string, blocks bool) (printed string) {
	t.Helper()
	cmd := testkit.Child(child, s.names.full)
	var out bytes.Buffer
	cmd.Stdout = &out
	stopped := failpoint.Start(t, point, cmd)
	stopped.Await()
	granted := make(chan store.Answer, 1)
	go func() { granted <- claimOne(t, s, lock("another")) }()
	if blocks {
		testkit.Eventually(t, "the claim of another key waits", s.isBlocked)
		if len(granted) > 0 {
			t.Error("the claim of another key did not wait")
		}
		stopped.Kill()
	}
	a := testkit.Await(t, "the claim of another key", granted)
	wantState(t, "the claim of another key", a, store.Granted)
	stopped.Kill()
	return strings.TrimSpace(out.String())
}

// wantUntilItsEnd: the killed child has the key until its lease ends and not a
// microsecond longer. Then it has abandoned it.
func wantUntilItsEnd(t *testing.T, s *Store, c *testClock, left time.Duration) {
	t.Helper()
	wantState(t, "the key", claimOne(t, s, asked("k")), store.Held)
	var has time.Duration
	for e, err := range s.List(t.Context(), store.Query{}) {
		testkit.Must(t, err)
		if e.Key == lock("k").Key && len(e.Runs) == 1 {
			has = e.Runs[0].Left
		}
	}
	if has > left || has < left-killedTTL/2 { // some of it has passed
		t.Errorf("the lease has %v left, not %v", has, left)
	}
	moveOn(t, s, c, has-time.Microsecond)
	wantState(t, "the key in the last microsecond of its lease", claimOne(t, s, asked("k")), store.Held)
	c.pass(time.Microsecond)
}

// childCalls claims a key, renews its lease and keeps a record under it. It can be
// stopped in each of these transactions.
func childCalls(args []string) error {
	var step atomic.Pointer[string]
	reach := func(what string) { failpoint.Reach(*step.Load() + ", " + what) }
	begin := func(name string) { step.Store(&name) }
	clock := hostClock
	clock.monotonic = func() int64 {
		reach("after BEGIN")
		return hostClock.monotonic()
	}
	clock.wall = func() int64 {
		reach("while it is written") // which is when a fence is given
		return hostClock.wall()
	}
	begin("open")
	s, err := open(args[0], &Options{LockWait: testkit.Limit, PruneEvery: -1}, clock)
	if err != nil {
		return err
	}
	// transact makes a call, and shares its transaction.
	transact := func(c *call) error {
		c.since, c.done = time.Now(), make(chan struct{}, 1)
		last := &call{since: c.since, done: make(chan struct{}, 1), work: func(*transaction) { reach("before COMMIT") }}
		s.mu.Lock()
		s.queue = append(s.queue, c, last)
		s.mu.Unlock()
		s.calls <- struct{}{}
		<-c.done
		<-last.done
		err := c.err
		for _, a := range c.answers {
			if a.State != store.Granted {
				err = errors.Join(err, fmt.Errorf("%+v", a))
			}
		}
		return errors.Join(append(c.errs, err)...)
	}
	k := lock("k")
	k.TTL = killedTTL

	begin("claim")
	if err := transact(&call{claims: []store.Claim{k}, answers: make([]store.Answer, 1)}); err != nil {
		return err
	}
	reach("after COMMIT")

	begin("renew")
	renewals := []store.Renewal{{Key: k.Key, Token: k.Token, TTL: renewedTTL}}
	if err := transact(&call{renewals: renewals, errs: make([]error, 1)}); err != nil {
		return err
	}
	reach("after COMMIT")

	begin("queue")
	if err := queueHere(s); err != nil {
		return err
	}
	reach("after COMMIT")

	begin("settle")
	s.Notify(func(store.Token, store.Answer) { reach("while a waiter is woken") })
	if err := transact(&call{settlements: []store.Settlement{keep(k)}, errs: make([]error, 1)}); err != nil {
		return err
	}
	reach("after COMMIT")
	select {}
}

// queueHere makes a claim wait for the key in this process. A process that dies in a queue is in
// the way until its place has run out.
func queueHere(s *Store) error {
	waiter := lock("k")
	waiter.Mode, waiter.MaxAge = store.Queue, store.AnyAge
	answers := make([]store.Answer, 1)
	if err := s.Claim(context.Background(), []store.Claim{waiter}, answers); err != nil {
		return err
	}
	if answers[0].State != store.Held {
		return fmt.Errorf("the waiter was answered %+v", answers[0])
	}
	return nil
}

// TestKilledInACall kills a process around each step of its calls. What was committed
// stands, what was not has not happened, and dead processes block no other one.
func TestKilledInACall(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		point  string
		blocks bool
		left   time.Duration // of the lease that it had; 0: it had none
		done   bool          // there is a record
	}{
		{point: "open, after BEGIN", blocks: true},
		{point: "claim, after BEGIN", blocks: true},
		{point: "claim, while it is written", blocks: true},
		{point: "claim, before COMMIT", blocks: true},
		{point: "claim, after COMMIT", left: killedTTL},
		{point: "renew, after BEGIN", blocks: true, left: killedTTL},
		{point: "renew, before COMMIT", blocks: true, left: killedTTL},
		{point: "renew, after COMMIT", left: renewedTTL},
		{point: "queue, after COMMIT", left: renewedTTL},
		{point: "settle, after BEGIN", blocks: true, left: renewedTTL},
		{point: "settle, before COMMIT", blocks: true, left: renewedTTL},
		{point: "settle, while a waiter is woken", blocks: true, done: true},
		{point: "settle, after COMMIT", done: true},
	} {
		t.Run(test.point, func(t *testing.T) {
			t.Parallel()
			c := standingClock(t)
			s := openTest(t, testFile(t), &Options{PruneEvery: -1}, c.clock())
			killAt(t, s, "calls", test.point, test.blocks)
			if test.done {
				a := claimOne(t, s, asked("k"))
				wantState(t, "the key", a, store.Done)
				if string(a.Record.Data) != "answer" {
					t.Errorf("the record is %q", a.Record.Data)
				}
				return
			}
			attempt := 1
			if test.left > 0 {
				wantUntilItsEnd(t, s, c, test.left)
				attempt = 2
			}
			if a := mustGrant(t, s, asked("k")); a.Attempt != attempt {
				t.Errorf("the attempt is %d, not %d", a.Attempt, attempt)
			}
		})
	}
}

// TestKilledWhileItMakesTheFile: a file that a process was about to make is made by the
// next one.
func TestKilledWhileItMakesTheFile(t *testing.T) {
	t.Parallel()
	path := testFile(t)
	child := failpoint.Start(t, "open, after BEGIN", testkit.Child("calls", path))
	child.Await()
	if _, err := Open(path, &Options{LockWait: 50 * time.Millisecond}); !errors.Is(err, ErrLocked) {
		t.Errorf("while another process makes the file: %v", err)
	}
	opened := make(chan error, 1)
	go func() {
		s, err := Open(path, &Options{LockWait: testkit.Limit})
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	child.Kill()
	testkit.Check(t, testkit.Await(t, "opening the file", opened))
	mustGrant(t, openTest(t, path, nil, hostClock), lock("k"))
}

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
