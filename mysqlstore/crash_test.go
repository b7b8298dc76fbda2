package mysqlstore

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

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// The environment of a child: the store's URL and prefix, and the DSN of the
// application.
const (
	childURL    = "MYSQLSTORE_CHILD_URL"
	childPrefix = "MYSQLSTORE_CHILD_PREFIX"
	childDSN    = "MYSQLSTORE_CHILD_DSN"
	childTTL    = 500 * time.Millisecond
)

// beChild is what the test binary does in a child process: for each key that it
// reads, it runs once, and says what the answer is. It ends when there is nothing more
// to read.
func beChild() {
	fail := func(err error) {
		if err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	s, err := Open(ctx, os.Getenv(childURL), &Options{Prefix: os.Getenv(childPrefix), PruneEvery: -1})
	fail(err)
	client, err := dibs.New(s, &dibs.Options{TTL: childTTL})
	fail(err)
	db, err := sql.Open("mysql", os.Getenv(childDSN))
	fail(err)
	tr := s.Transactions(db, nil)
	fmt.Println("ready")
	for keys := bufio.NewScanner(os.Stdin); keys.Scan(); {
		key := keys.Text()
		run := func() (string, error) {
			return OnceTx(ctx, client, tr, key, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
				answer := fmt.Sprintf("%s by %d", key, os.Getpid())
				_, err := tx.ExecContext(ctx, "INSERT INTO "+os.Getenv(childPrefix)+"_books VALUES (?, ?)", key, answer)
				return answer, err
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

func startChild(t *testing.T, server *servertest.MariaDBServer, prefix, params string) *child {
	t.Helper()
	c := &child{cmd: exec.CommandContext(t.Context(), os.Args[0])}
	c.cmd.Env = append(os.Environ(), childURL+"="+server.URL(), childPrefix+"="+prefix, childDSN+"="+server.DSN()+params)
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

// kill ends the child, and returns what it had said by then.
func (c *child) kill() string {
	_ = c.cmd.Process.Kill()
	said := c.read() // before Wait, which throws it away
	_ = c.cmd.Wait()
	return said
}

// TestKilled: processes are killed at any moment between the claim and the answer,
// and after that each key has one entry in the ledger and one answer, which is the
// same whoever asks and however often.
func TestKilled(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]struct {
		server func() *servertest.MariaDBServer
		params string
		times  int
	}{
		"MariaDB":        {mariadb, "", 200},
		"MySQL":          {mysqld, "?interpolateParams=true", 40},
		"MySQL, several": {mysqld, "?multiStatements=true", 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, prefix := kind.server(), ownPrefix()
			s := open(t, server.URL(), &Options{Prefix: prefix})
			start := func() *child { return startChild(t, server, prefix, kind.params) }
			server.Query("CREATE TABLE " + prefix + "_books (what VARCHAR(100) NOT NULL, answer VARCHAR(100) NOT NULL) ENGINE = InnoDB")
			// How long a run takes where nobody is killed.
			first := start()
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
							victim = start()
						}
						if heir == nil {
							heir = start()
						}
						_, _ = fmt.Fprintln(victim.in, key)
						// Up to more than one run, as the machine is busy; and in every second one
						// early, as a child that is new takes longer.
						most := 6 * usual
						if n%2 == 0 {
							most = 2 * usual
						}
						wait := time.NewTimer(rand.N(most))
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
			for n := range kind.times {
				numbers <- n
			}
			close(numbers)
			all.Wait()

			client := newClient(t, s, nil)
			rows := server.Query("SELECT what, MIN(answer), COUNT(*) FROM " + prefix + "_books WHERE what LIKE 'key %' GROUP BY what")
			if len(rows) != kind.times {
				t.Errorf("%d keys have entries, want %d", len(rows), kind.times)
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

// TestKilledAfterSettling: a session that is ended between its settlement and COMMIT
// has done neither.
func TestKilledAfterSettling(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr dibs.Transactor) {
		token := b.hold(t, 1)
		tx := b.begin(t, tr)
		var id int64
		if err := tx.tx.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
			t.Fatal(err)
		}
		b.settleOnly(t, tx, keeps(token))
		b.query(t, fmt.Sprint("KILL ", id))
		if err := tx.tx.Commit(); err == nil {
			t.Error("it was committed")
		}
		if n := b.entries(t, "k"); n != 0 {
			t.Errorf("%d entries", n)
		}
		if a := b.ask(t, dibs.Claim{Token: dibs.NewToken(), MaxAge: dibs.AnyAge}); a.State != dibs.Held {
			t.Errorf("%+v, want that it is held", a)
		}
		if a := b.ask(t, dibs.Claim{Token: token, MaxAge: dibs.AnyAge}); a.State != dibs.Granted {
			t.Errorf("%+v, want that it still holds", a)
		}
	})
}
