package pgstore

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
)

// The environment of a child: the URL and the schema, and the kind of transactions.
const (
	childURL    = "PGSTORE_CHILD_URL"
	childSchema = "PGSTORE_CHILD_SCHEMA"
	childKind   = "PGSTORE_CHILD_KIND"
	childTTL    = 500 * time.Millisecond
)

// beChild is what the test binary does in a child process: for each key that it
// reads, it runs once, and says what the answer is. It never ends by itself.
func beChild() {
	fail := func(err error) {
		if err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	s, err := Open(ctx, os.Getenv(childURL), &Options{Schema: os.Getenv(childSchema), PruneEvery: -1})
	fail(err)
	client, err := dibs.New(s, &dibs.Options{TTL: childTTL})
	fail(err)
	var tr dibs.Transactor
	if os.Getenv(childKind) == "sql" {
		db, err := sql.Open("pgx", os.Getenv(childURL))
		fail(err)
		tr = s.SQLTransactions(db, nil)
	} else {
		pool, err := pgxpool.New(ctx, os.Getenv(childURL))
		fail(err)
		tr = s.Transactions(pool, nil)
	}
	ledger := os.Getenv(childSchema) + ".ledger"
	if os.Getenv(childKind) == "enqueuer" {
		fail(beEnqueuer(ctx, s, client, ledger))
		return
	}
	fmt.Println("ready")
	if os.Getenv(childKind) == "sleeper" {
		beSleeper(ctx, client, tr, ledger)
		return
	}
	for keys := bufio.NewScanner(os.Stdin); keys.Scan(); {
		key := keys.Text()
		run := func() (string, error) {
			return once(ctx, client, tr, key, nil, func(ctx context.Context, w *writer) (string, error) {
				answer := fmt.Sprintf("%s by %d", key, os.Getpid())
				return answer, w.exec(ctx, fmt.Sprintf("INSERT INTO %s VALUES ('%s', '%s')", ledger, key, answer))
			})
		}
		answer, err := run()
		// As a caller would: the machine may be too busy to keep such a short lease.
		for start := time.Now(); err != nil && time.Since(start) < time.Minute; {
			answer, err = run()
		}
		fail(err)
		fmt.Println(answer)
	}
}

// child is a process that runs once.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t *testing.T, url, schema, kind string) *child {
	t.Helper()
	c := &child{cmd: exec.CommandContext(t.Context(), os.Args[0])}
	c.cmd.Env = append(os.Environ(), childURL+"="+url, childSchema+"="+schema, childKind+"="+kind)
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	if got := c.read(); got != "ready" {
		t.Fatalf("a child says %q", got)
	}
	return c
}

// read returns what the child says next; "" when it is dead.
func (c *child) read() string {
	line, _ := c.out.ReadString('\n')
	return strings.TrimSuffix(line, "\n")
}

// kill ends the child and returns what it has said by then.
func (c *child) kill() (said string) {
	_ = c.cmd.Process.Kill()
	said = c.read() // before Wait, which closes the pipe
	_ = c.cmd.Wait()
	return said
}

// TestKilled: processes are killed at any moment between the claim and the answer,
// and after that each key has one entry in the ledger and one answer, which is the
// same whoever asks and however often.
func TestKilled(t *testing.T) {
	t.Parallel()
	const each = 100
	for _, kind := range []string{"pgx", "sql"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url, schema := shared().URL(), ownSchema()
			s := open(t, url, &Options{Schema: schema})
			shared().Query("CREATE TABLE " + schema + ".ledger (key text NOT NULL, answer text NOT NULL)")
			// How long a run takes where nobody is killed.
			first := startChild(t, url, schema, kind)
			usual := time.Hour
			for range 20 {
				start := time.Now()
				_, _ = fmt.Fprintln(first.in, "warm up", start.UnixNano())
				if got := first.read(); !strings.HasPrefix(got, "warm up") {
					t.Fatal(got)
				}
				usual = min(usual, time.Since(start))
			}
			first.kill()

			numbers := make(chan int)
			var mu sync.Mutex
			ends := map[string]int{}
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					var victim, heir *child
					for n := range numbers {
						key := fmt.Sprint("key ", n)
						if victim == nil {
							victim = startChild(t, url, schema, kind)
						}
						if heir == nil {
							heir = startChild(t, url, schema, kind)
						}
						_, _ = fmt.Fprintln(victim.in, key)
						wait := time.NewTimer(rand.N(6 * usual)) // more than one: the machine is busy
						<-wait.C
						said := victim.kill()
						_, _ = fmt.Fprintln(heir.in, key)
						answer := heir.read()
						_, _ = fmt.Fprintln(heir.in, key)
						if again := heir.read(); again != answer || !strings.HasPrefix(answer, key+" by") || said != "" && said != answer {
							t.Errorf("%s: the answers are %q, %q and %q", key, said, answer, again)
						}
						mu.Lock()
						switch {
						case said != "":
							ends["after the answer"]++
						case strings.HasSuffix(answer, fmt.Sprint(" by ", victim.cmd.Process.Pid)):
							ends["after COMMIT"]++
						default:
							ends["before COMMIT"]++
						}
						mu.Unlock()
						victim, heir = heir, nil
					}
					for _, c := range []*child{victim, heir} {
						if c != nil {
							c.kill()
						}
					}
				})
			}
			for n := range each {
				numbers <- n
			}
			close(numbers)
			all.Wait()

			client := newClient(t, s, nil)
			rows := shared().Query("SELECT key, min(answer), count(*) FROM " + schema + ".ledger WHERE key LIKE 'key %' GROUP BY key")
			if len(rows) != each {
				t.Errorf("%d keys have entries, want %d", len(rows), each)
			}
			for _, row := range rows {
				got, err := dibs.Once(t.Context(), client, row[0], nil, func(context.Context) (string, error) { return "nobody has answered", nil })
				if err != nil || got != row[1] || row[2] != "1" {
					t.Errorf("%s has %s entries, the ledger says %q and the answer is %q, %v", row[0], row[2], row[1], got, err)
				}
			}
			t.Logf("a run takes %v; they were killed %v", usual.Round(time.Microsecond), ends)
			if ends["before COMMIT"] == 0 {
				t.Error("nobody was killed in time")
			}
		})
	}
}

// TestKilledAfterSettling: a process that is killed between its settlement and COMMIT
// has done neither.
func TestKilledAfterSettling(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	k, token := dibs.Key{Name: "k"}, dibs.NewToken()
	claim := func(token dibs.Token) dibs.Answer {
		answers := make([]dibs.Answer, 1)
		c := dibs.Claim{Key: k, Token: token, TTL: time.Minute, Permits: 1, MaxAge: dibs.AnyAge}
		if err := b.s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil {
			t.Fatal(err)
		}
		return answers[0]
	}
	claim(token)
	tx := b.beginMarked(t, "")
	b.settleIn(t, tx, dibs.Settlement{Key: k, Token: token, Outcome: dibs.Keep, Data: []byte("answer"), Retention: time.Hour})
	shared().Query(fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", tx.Conn().PgConn().PID()))
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("it was committed")
	}
	if n := b.entries(t, "k"); n != 0 {
		t.Errorf("%d entries", n)
	}
	if a := claim(dibs.NewToken()); a.State != dibs.Held {
		t.Errorf("%+v, want that it is held", a)
	}
	if a := claim(token); a.State != dibs.Granted {
		t.Errorf("%+v, want that it still holds", a)
	}
}
