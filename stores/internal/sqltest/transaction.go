package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// Failing is a way in which a run fails after it has made its entry.
type Failing struct {
	SQL      []string // statements whose errors the run returns
	Swallows bool     // the run does not return them
	Err      error    // what the run returns in the end
	Is       error
	Says     string
	Entries  int // that are committed; -1: any number
}

// Transactions tests a kind of transactions, with a new bank for each test.
func Transactions(t *testing.T, open func(t *testing.T) *Bank, failing func(b *Bank) map[string]Failing) {
	for name, test := range map[string]func(*Bank, *testing.T){
		"Once":          (*Bank).once,
		"Deadlock":      (*Bank).deadlock,
		"LateWaiters":   (*Bank).lateWaiters,
		"HeldOpen":      (*Bank).heldOpen,
		"KilledSettled": (*Bank).killedSettled,
		"Overtaken":     (*Bank).overtaken,
		"Abandoned":     (*Bank).abandoned,
		"Ends":          (*Bank).ends,
		"UnknownCommit": (*Bank).unknownCommit,
		"NoCatchUp":     (*Bank).noCatchUp,
		"Fails":         func(b *Bank, t *testing.T) { b.fails(t, failing(b)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(open(t), t)
		})
	}
}

// The effect and the answer are committed together, once, for all callers.
func (b *Bank) once(t *testing.T) {
	answers := make(chan string, 16)
	clients := []*dibs.Client{b.Client, Client(t, b.Store, nil)}
	for i := range cap(answers) {
		go func() {
			got, err := dibs.OnceIn(t.Context(), clients[i%2], b.Transactor, "k", nil, func(ctx context.Context) (string, error) {
				return fmt.Sprint("answer ", i), b.Exec(ctx, b.entry("k"))
			})
			testkit.Check(t, err)
			answers <- got
		}()
	}
	first := <-answers
	for range cap(answers) - 1 {
		if got := <-answers; got != first {
			t.Errorf("answered %q and %q", first, got)
		}
	}
	if n := b.Entries(t, "k"); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
}

// If the answer to COMMIT is lost, or the connection before the server has it, it is found out what
// became of it.
func (b *Bank) unknownCommit(t *testing.T) {
	far := servertest.NewWire(t, b.Server.Addr())
	tr := b.Over(far.Addr())
	run := func(key string, trouble func()) (string, error) {
		return dibs.OnceIn(t.Context(), b.Client, tr, key, nil, func(ctx context.Context) (string, error) {
			err := b.Exec(ctx, b.entry(key))
			trouble()
			return "booked " + key, err
		})
	}
	var lost <-chan struct{}
	got, err := run("k", func() { lost = far.LoseReplyTo(b.CommitText) })
	<-lost
	if err != nil || got != "booked k" || b.Entries(t, "k") != 1 {
		t.Errorf("%q, %v, %d entries", got, err, b.Entries(t, "k"))
	}
	if got, err = run("k", func() {}); err != nil || got != "booked k" || b.Entries(t, "k") != 1 {
		t.Errorf("then %q, %v, %d entries", got, err, b.Entries(t, "k"))
	}
	far.Mend()
	if got, err = run("l", far.Cut); !errors.Is(err, store.ErrRolledBack) || got != "" || b.Entries(t, "l") != 0 {
		t.Errorf("cut off: %q, %v, %d entries", got, err, b.Entries(t, "l"))
	}
	far.Mend()
	if got, err = run("l", func() {}); err != nil || got != "booked l" || b.Entries(t, "l") != 1 {
		t.Errorf("then %q, %v, %d entries", got, err, b.Entries(t, "l"))
	}
}

// A run that fails leaves no answer and no effect of its transaction, and the next run can start.
func (b *Bank) fails(t *testing.T, ways map[string]Failing) {
	for name, way := range ways {
		ran := 0
		_, err := dibs.OnceIn(t.Context(), b.Client, b.Transactor, name, nil, func(ctx context.Context) (string, error) {
			ran++
			if err := b.Exec(ctx, b.entry(name)); err != nil {
				return "", err
			}
			for _, statement := range way.SQL {
				if err := b.Exec(ctx, statement); err != nil && !way.Swallows {
					return "", err
				}
			}
			return "wrong", way.Err
		})
		if err == nil || ran != 1 || way.Is != nil && !errors.Is(err, way.Is) || !strings.Contains(err.Error(), way.Says) {
			t.Errorf("%s: after %d runs: %v; want %v and %q", name, ran, err, way.Is, way.Says)
		}
		if n := b.Entries(t, name); n != way.Entries && way.Entries >= 0 {
			t.Errorf("%s: %d entries are there, want %d", name, n, way.Entries)
		}
		b.book(t, name)
	}
}

// A run that panics, or whose context ends, has no effect, and the key is free. If a run returns
// although its context has ended, it may have an effect and an answer.
func (b *Bank) ends(t *testing.T) {
	for name, test := range map[string]struct {
		run func(ctx context.Context, over func()) error
		is  error // nil: the run panics
	}{
		"panics": {func(context.Context, func()) error { panic("boom") }, nil},
		"runs out of time": {func(ctx context.Context, over func()) error {
			go over()
			if b.Exec(ctx, fmt.Sprintf(b.Sleep, 60.0)) == nil {
				return nil
			}
			<-ctx.Done() // the statement's own error differs: database/sql may have closed the connection before it was sent
			return ctx.Err()
		}, context.Canceled},
		"lets time run out": {func(ctx context.Context, over func()) error {
			over()
			<-ctx.Done()
			return nil
		}, store.ErrRolledBack},
	} {
		var panicked any
		run := func() (got string, err error) {
			defer func() { panicked = recover() }()
			ctx, over := context.WithCancel(t.Context())
			defer over()
			return dibs.OnceIn(ctx, b.Client, b.Transactor, name, nil, func(ctx context.Context) (string, error) {
				if err := b.Exec(ctx, b.entry(name)); err != nil {
					return "", err
				}
				return "done", test.run(ctx, over)
			})
		}
		got, err := run()
		if got == "done" && err == nil && test.is == store.ErrRolledBack {
			if n := b.Entries(t, name); n != 1 {
				t.Errorf("%s: answered, with %d entries", name, n)
			}
			continue
		}
		if !errors.Is(err, test.is) || (test.is == nil) != (panicked != nil) {
			t.Errorf("%s: %v and %v, want %v", name, err, panicked, test.is)
		}
		// The server may still be at a statement whose caller has stopped waiting.
		b.book(t, name)
		if n := b.Entries(t, name); n != 1 {
			t.Errorf("%s: %d entries, want 1", name, n)
		}
	}
}

// If two runs are in a deadlock, one of them runs again.
func (b *Bank) deadlock(t *testing.T) {
	statements(t, b.DB, "CREATE INDEX "+testkit.Own()+" ON "+b.Ledger+" (what)", b.entry("left"), b.entry("right"))
	met := make(chan struct{})
	done, ran := make(chan error, 2), make(chan string, 20)
	for _, rows := range [][]string{{"left", "right"}, {"right", "left"}} {
		go func() {
			first := true
			_, err := dibs.OnceIn(t.Context(), b.Client, b.Transactor, "from "+rows[0], nil, func(ctx context.Context) (string, error) {
				ran <- rows[0]
				if err := b.Exec(ctx, b.touch(rows[0])); err != nil {
					return "", err
				}
				if first {
					first = false
					select {
					case met <- struct{}{}:
					case <-met:
					}
				}
				return "", b.Exec(ctx, b.touch(rows[1]))
			})
			done <- err
		}()
	}
	for range 2 {
		select {
		case err := <-done:
			testkit.Check(t, err)
		case <-time.After(testkit.Limit):
			t.Fatal("they wait for each other")
		}
	}
	if len(ran) < 3 {
		t.Errorf("%d runs, want one more than two", len(ran))
	}
}

// Waiters that join while a transaction is open are woken when it commits, even if the transaction
// does not see them. The record answers them. The key is granted only to waiters that the record
// does not answer.
func (b *Bank) lateWaiters(t *testing.T) {
	others := b.Open(t, b.URL, b.Name, none)
	if b.Listen != nil {
		b.Listen(t, others)
	}
	woken := make(chan store.Token, 100)
	t.Cleanup(others.Notify(func(token store.Token, _ store.Answer) { woken <- token }))
	queue := func(token store.Token, age time.Duration) store.Answer {
		t.Helper()
		return Ask(t, others, store.Claim{
			Key: store.Key{Name: "k"}, Token: token, Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, MaxAge: age,
		})
	}
	lease, err := b.Client.Acquire(t.Context(), "k", nil)
	testkit.Must(t, err)
	first, lock, last := store.NewToken(), store.NewToken(), store.NewToken()
	queue(first, store.AnyAge) // which changes the key's row
	_, tx := b.begin(t)
	queue(lock, 0)
	queue(last, store.AnyAge)
	testkit.Must(t, lease.CompleteIn(t.Context(), tx, []byte(`{"value":"answer"}`), time.Hour))
	for waiting := map[store.Token]store.State{first: store.Done, last: store.Done, lock: store.Granted}; len(waiting) > 0; {
		select {
		case token := <-woken:
			want, waits := waiting[token]
			if !waits {
				continue
			}
			age := store.AnyAge
			if token == lock {
				age = 0
			}
			switch a := queue(token, age); a.State {
			case want:
				delete(waiting, token)
			case store.Held:
			default:
				t.Fatalf("it was answered %+v, want state %v", a, want)
			}
		case <-time.After(testkit.Limit):
			t.Fatalf("%d still wait", len(waiting))
		}
	}
	if n := b.Entries(t, "k"); n != 1 {
		t.Errorf("%d entries", n)
	}
}

// If the process ends before CatchUp, waiters that ask get the record and no grant. The next call about
// the key deletes what is left of the lease.
func (b *Bank) noCatchUp(t *testing.T) {
	k := store.Key{Name: "k"}
	claim := func(token store.Token, mode store.Mode, age time.Duration) store.Answer {
		t.Helper()
		return Ask(t, b.Store, store.Claim{Key: k, Token: token, Mode: mode, MaxAge: age})
	}
	// The holder's place was reserved, and it has saved something.
	place, holder := store.NewToken(), store.NewToken()
	claim(place, store.Reserve, store.AnyAge)
	if a := Ask(t, b.Store, store.Claim{Key: k, Token: holder, From: place, MaxAge: store.AnyAge}); a.State != store.Granted {
		t.Fatalf("%+v", a)
	}
	errs := make([]error, 1)
	r := store.Renewal{Key: k, Token: holder, TTL: time.Minute, Progress: []byte("half")}
	testkit.Must(t, errors.Join(b.Store.Renew(t.Context(), []store.Renewal{r}, errs), errs[0]))
	ctx, _ := b.begin(t)
	first, lock, second, reserved := store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
	claim(first, store.Queue, store.AnyAge)
	claim(lock, store.Queue, 0)
	claim(second, store.Queue, store.AnyAge)
	claim(reserved, store.Reserve, store.AnyAge)
	testkit.Must(t, b.Settle(ctx, keeps(holder)))
	testkit.Must(t, b.Commit(ctx))
	for name, token := range map[string]store.Token{"a new one": store.NewToken(), "second": second, "first": first} {
		if a := claim(token, store.Try, store.AnyAge); a.State != store.Done {
			t.Errorf("%s: %+v, want the record", name, a)
		}
	}
	if a := claim(lock, store.Queue, 0); a.State != store.Granted || a.Attempt != 1 || a.Progress != nil {
		t.Errorf("%+v, want that the lock is granted, with nothing that was abandoned", a)
	}
	testkit.Must(t, errors.Join(Settle(t, b.Store, store.Settlement{Key: k, Token: lock}), Settle(t, b.Store, store.Settlement{Key: k, Token: reserved})))
	for _, what := range []string{"@key WHERE busy", "@progress", "@waiter"} {
		if n := b.Server.Query(b.Names(b.Store, "SELECT COUNT(*) FROM "+what))[0][0]; n != "0" {
			t.Errorf("%s rows are left of %s", n, what)
		}
	}
}

// A process that hangs between the settlement and COMMIT delays the calls about its key, and no
// other calls.
func (b *Bank) heldOpen(t *testing.T) {
	token := Hold(t, b.Store, "k")
	ctx, _ := b.begin(t)
	testkit.Must(t, b.Settle(ctx, keeps(token)))
	claims, answers := make([]store.Claim, 3), make([]store.Answer, 3)
	for i, name := range []string{"a", "k", "z"} {
		claims[i] = store.Claim{Key: store.Key{Name: name}, Token: store.NewToken(), Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1, MaxAge: store.AnyAge}
	}
	testkit.Must(t, b.Store.Claim(t.Context(), claims, answers))
	if answers[0].State != store.Granted || answers[2].State != store.Granted || !errors.Is(answers[1].Err, b.Locked) {
		t.Errorf("%+v; want grants of the other keys, and %v", answers, b.Locked)
	}
	// Meanwhile records of other keys are written, also records next to that one.
	settlements, errs := make([]store.Settlement, 2), make([]error, 2)
	for i, c := range []store.Claim{claims[0], claims[2]} {
		settlements[i] = keeps(c.Token)
		settlements[i].Key = c.Key
	}
	testkit.Check(t, errors.Join(b.Store.Settle(t.Context(), settlements, errs), errs[0], errs[1]))
	testkit.Must(t, b.Commit(ctx))
	if a := b.ask(t, store.NewToken()); a.State != store.Done {
		t.Errorf("%+v, want the record", a)
	}
}

// ask claims the key "k", or takes its record.
func (b *Bank) ask(t testing.TB, token store.Token) store.Answer {
	t.Helper()
	return Ask(t, b.Store, store.Claim{Key: store.Key{Name: "k"}, Token: token, MaxAge: store.AnyAge})
}

// A connection that ends between the settlement and COMMIT has done neither.
func (b *Bank) killedSettled(t *testing.T) {
	token := Hold(t, b.Store, "k")
	ctx, _ := b.begin(t)
	number, err := b.Connection(ctx)
	testkit.Must(t, err)
	testkit.Must(t, b.Settle(ctx, keeps(token)))
	b.Server.Query(fmt.Sprintf(b.End, number))
	if err := b.Commit(ctx); err == nil {
		t.Error("it was committed")
	}
	if n := b.Entries(t, "k"); n != 0 {
		t.Errorf("%d entries", n)
	}
	if a := b.ask(t, store.NewToken()); a.State != store.Held {
		t.Errorf("%+v, want that it is held", a)
	}
	if a := b.ask(t, token); a.State != store.Granted {
		t.Errorf("%+v, want that it still holds", a)
	}
}

// A holder whose lease has expired, or was granted to another token since, commits nothing,
// although it does not know.
func (b *Bank) overtaken(t *testing.T) {
	for _, another := range []bool{false, true} {
		lease, err := b.Client.Acquire(t.Context(), "k", &dibs.AcquireOptions{TTL: time.Hour})
		testkit.Must(t, err)
		_, tx := b.begin(t)
		statements(t, b.DB, b.Names(b.Store, b.RunOut))
		var next *dibs.Lease
		if another {
			if next, err = b.Client.Acquire(t.Context(), "k", nil); err != nil || next.Attempt() != lease.Attempt()+1 {
				t.Fatalf("%v, %v; want the next attempt", next, err)
			}
		}
		// If the transaction has a snapshot, the server may say that it is too old.
		err = lease.CompleteIn(t.Context(), tx, []byte("wrong"), time.Hour)
		if !errors.Is(err, store.ErrLost) && !errors.Is(err, store.ErrRolledBack) {
			t.Errorf("%v, want ErrLost", err)
		}
		if n := b.Entries(t, "k"); n != 0 {
			t.Errorf("%d entries of a holder that was overtaken", n)
		}
		_ = lease.Release()
		if another {
			testkit.Check(t, next.Release())
		}
	}
}

// When its context ends, a transaction keeps nothing locked, even if the run does not end it.
func (b *Bank) abandoned(t *testing.T) {
	statements(t, b.DB, b.entry("row"))
	ctx, cancel := context.WithCancel(t.Context())
	tx, err := b.Transactor.Begin(ctx)
	testkit.Must(t, err)
	touch := b.touch("row")
	testkit.Must(t, b.Exec(store.WithTransaction(ctx, tx), touch))
	cancel()
	waiting, done := context.WithTimeout(t.Context(), testkit.Limit)
	defer done()
	if _, err := b.DB.ExecContext(waiting, touch); err != nil {
		t.Errorf("the row is locked: %v", err)
	}
	if err := tx.Commit(t.Context(), keeps(store.NewToken())); !errors.Is(err, store.ErrRolledBack) {
		t.Errorf("%v, want ErrRolledBack", err)
	}
	tx.Rollback()
}

// Bank is an application with a ledger on the server of the store.
type Bank struct {
	*Kind
	URL, Name  string // of the store
	Store      Store
	Client     *dibs.Client
	Transactor store.Transactor
	// Over returns transactions of that kind on another address of the server.
	Over   func(addr string) store.Transactor
	DB     *sql.DB // for the tests' own queries
	Ledger string  // its table, with a column "what"
	// Exec carries SQL out in the transaction of the context.
	Exec func(ctx context.Context, sql string) error
	// Settle settles a key in the transaction of the context, and leaves that open.
	Settle func(ctx context.Context, x store.Settlement) error
	// Connection returns the number of the connection of the transaction.
	Connection func(ctx context.Context) (string, error)
	// Commit commits the transaction of the context.
	Commit func(ctx context.Context) error
}

// entry is the statement that makes an entry.
func (b *Bank) entry(what string) string {
	return fmt.Sprintf("INSERT INTO %s (what) VALUES ('%s')", b.Ledger, what)
}

// touch is a statement that changes a row.
func (b *Bank) touch(row string) string {
	return fmt.Sprintf("UPDATE %s SET what=CONCAT(what, '') WHERE what='%s'", b.Ledger, row)
}

// Entries counts the entries with that name.
func (b *Bank) Entries(t testing.TB, what string) (n int) {
	t.Helper()
	testkit.Must(t, b.DB.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+b.Ledger+" WHERE what='"+what+"'").Scan(&n))
	return n
}

// book makes an entry in a new run, and checks that it ran.
func (b *Bank) book(t testing.TB, key string) {
	t.Helper()
	before := b.Entries(t, key)
	got, err := dibs.OnceIn(t.Context(), b.Client, b.Transactor, key, nil, func(ctx context.Context) (string, error) {
		return "booked " + key, b.Exec(ctx, b.entry(key))
	})
	if n := b.Entries(t, key); err != nil || got != "booked "+key || n != before+1 {
		t.Errorf("%s: then %q, %v, and %d entries after %d", key, got, err, n, before)
	}
}

// begin begins a transaction and makes an entry in it.
func (b *Bank) begin(t testing.TB) (context.Context, store.Transaction) {
	t.Helper()
	tx, err := b.Transactor.Begin(t.Context())
	testkit.Must(t, err)
	t.Cleanup(tx.Rollback)
	ctx := store.WithTransaction(t.Context(), tx)
	testkit.Must(t, b.Exec(ctx, b.entry("k")))
	return ctx, tx
}

// keeps returns a settlement that writes a record.
func keeps(token store.Token) store.Settlement {
	return store.Settlement{Key: store.Key{Name: "k"}, Token: token, Outcome: store.Keep, Data: []byte(`{"value":"answer"}`), Retention: time.Hour}
}
