//go:build unix

package command_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/command"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
	"github.com/dibs-go/dibs/stores/mysqlstore"
	"github.com/dibs-go/dibs/stores/pgstore"
	"github.com/dibs-go/dibs/stores/redisstore"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// binary is the program: without the race detector, because the memory of a small machine is not
// enough for many processes with it.
var binary string

// writer in the environment makes the test binary a command that writes to a
// guarded resource; see TestRunStopped.
const writer = "DIBS_TEST_WRITER"

// first in the environment makes the test binary the first process of a container, which runs its
// arguments; see TestRunAsFirstProcess.
const first = "DIBS_TEST_FIRST"

func TestMain(m *testing.M) {
	if url := os.Getenv(writer); url != "" {
		writeGuarded(url)
		return
	}
	if os.Getenv(first) != "" {
		os.Exit(reapNothing(os.Args[1:]))
	}
	command.Child() // because a command that runs in a test starts this program again
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		fmt.Fprintf(os.Stderr, "a test has started the test binary in place of dibs: %q\n", os.Args)
		os.Exit(2)
	}
	for _, name := range []string{"DIBS_STORE", "DIBS_STORE_FILE", "DIBS_KEY", "DIBS_NAMESPACE", "DIBS_FENCE", "DIBS_HELD"} {
		os.Unsetenv(name)
	}
	var err error
	if binary, err = servertest.Dibs(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testkit.Main(m, nil, scope.Close)
}

// reapNothing runs a command and waits for it alone, as many programs do that are the first
// process of a container. It returns the command's exit code.
func reapNothing(args []string) int {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if _ = cmd.Run(); cmd.ProcessState == nil {
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// scope owns the servers that several tests share.
var scope = servertest.NewScope()

// sharedPostgres is a server on which each bench has a schema of its own. Each of
// some hundred processes has a few connections.
var sharedPostgres = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, Password: secret, MaxConnections: 1000})
})

// sharedMariaDB is a server on which each bench has tables of its own.
var sharedMariaDB = sync.OnceValue(func() *servertest.MariaDBServer {
	return servertest.MariaDB(scope, &servertest.MariaDBOptions{NoSync: true, Password: secret, MaxConnections: 1000})
})

var schemas atomic.Int64

// writeGuarded writes to the resource, with the fence, again and again.
func writeGuarded(url string) {
	for {
		res, err := http.Post(url+"?fence="+os.Getenv("DIBS_FENCE"), "text/plain", nil)
		if err != nil {
			os.Exit(1)
		}
		res.Body.Close()
		time.Sleep(20 * time.Millisecond)
	}
}

// bench is a folder with a store, in which a test works.
type bench struct {
	dir   string
	store string // URL
	env   []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	return &bench{dir: dir, store: "sqlite:" + filepath.Join(dir, "dibs.db")}
}

// kind is a kind of store that several processes can share.
type kind struct {
	name  string
	fresh func(*testing.T) *bench
}

// servers are the kinds that have a server.
var servers = []kind{{"redis", newRedisBench}, {"postgres", newPostgresBench}, {"mariadb", newMariaDBBench}}

// shared are the kinds that everyStore tests. The nightly tests add the servers.
var shared = []kind{{"sqlite", newBench}}

// everyStore runs the test on each of the shared kinds of store.
func everyStore(t *testing.T, test func(*testing.T, *bench)) {
	for _, k := range shared {
		t.Run(k.name, func(t *testing.T) { test(t, k.fresh(t)) })
	}
}

// newRedisBench is newBench with a server that wants a password.
func newRedisBench(t *testing.T) *bench {
	t.Helper()
	server := servertest.Redis(t, &servertest.RedisOptions{Password: secret})
	return &bench{dir: t.TempDir(), store: server.URL()}
}

// newPostgresBench is newBench with a database that wants a password.
func newPostgresBench(t *testing.T) *bench {
	t.Helper()
	return emptyPostgresBench(t).withTables(t)
}

// newMariaDBBench is newPostgresBench on MariaDB.
func newMariaDBBench(t *testing.T) *bench {
	t.Helper()
	return emptyMariaDBBench(t).withTables(t)
}

// emptyPostgresBench is newPostgresBench without the tables.
func emptyPostgresBench(t *testing.T) *bench {
	t.Helper()
	schema := fmt.Sprintf("bench%d", schemas.Add(1))
	sharedPostgres().Query("CREATE SCHEMA " + schema)
	return &bench{dir: t.TempDir(), store: sharedPostgres().URL() + "&schema=" + schema}
}

// emptyMariaDBBench is newMariaDBBench without the tables.
func emptyMariaDBBench(t *testing.T) *bench {
	t.Helper()
	return &bench{dir: t.TempDir(), store: fmt.Sprintf("%s?prefix=bench%d", sharedMariaDB().URL(), schemas.Add(1))}
}

// withTables makes the tables of the store.
func (b *bench) withTables(t *testing.T) *bench {
	t.Helper()
	_, err := anystore.Migrate(t.Context(), b.store)
	testkit.Must(t, err)
	return b
}

// secret must not appear in any output.
const secret = "pass-word"

// path is a file in the folder.
func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// exists reports whether a file is there.
func (b *bench) exists(name string) bool {
	_, err := os.Stat(b.path(name))
	return err == nil
}

// read returns what a file holds; "" when it is not there.
func (b *bench) read(name string) string {
	text, _ := os.ReadFile(b.path(name))
	return string(text)
}

// lines returns a file's lines.
func (b *bench) lines(name string) []string { return strings.Fields(b.read(name)) }

func (b *bench) write(t *testing.T, name, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(b.path(name), []byte(text), 0o644))
}

// program is one run of the program in a process of its own.
type program struct {
	*exec.Cmd
	stdout, stderr testkit.Output
	done           chan struct{}
}

// command prepares a run in the folder, with the folder's store.
func (b *bench) command(args ...string) *program {
	p := &program{Cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.Dir = b.dir
	p.Env = append(append(os.Environ(), "DIBS_STORE="+b.store), b.env...)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	// A command that outlives the program must not hold up the test.
	p.WaitDelay = testkit.Limit
	return p
}

// start starts a run; it is killed at the end of the test.
func (b *bench) start(t *testing.T, args ...string) *program {
	t.Helper()
	return b.command(args...).begin(t)
}

func (p *program) begin(t *testing.T) *program {
	t.Helper()
	testkit.Must(t, p.Start())
	go func() {
		defer close(p.done)
		_ = p.Wait()
	}()
	t.Cleanup(func() {
		_ = p.Process.Signal(syscall.SIGCONT)
		_ = p.Process.Kill()
		<-p.done
		if said := p.stdout.String() + p.stderr.String(); t.Failed() && said != "" {
			t.Logf("%.200q:\n%.2000s", p.Args[1:], said)
		}
	})
	return p
}

// code waits for the end and returns the exit code, -1 for a signal's death.
func (p *program) code(t *testing.T) int {
	t.Helper()
	testkit.Await(t, fmt.Sprintf("the end of %.200q", p.Args[1:]), p.done)
	return p.ProcessState.ExitCode()
}

// run runs the program to its end.
func (b *bench) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := b.start(t, args...)
	code = p.code(t)
	stdout, stderr = p.stdout.String(), p.stderr.String()
	if strings.Contains(stdout+stderr, secret) {
		t.Errorf("%q prints the password: %s%s", args, stdout, stderr)
	}
	return code, stdout, stderr
}

func (p *program) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	testkit.Must(t, p.Process.Signal(s))
}

// inspected is a store with its inspector.
type inspected interface {
	dibs.Store
	store.Inspector
	Close() error
}

// inspector opens the store to look into it.
func (b *bench) inspector(t *testing.T) inspected {
	t.Helper()
	var s inspected
	var err error
	switch scheme, path, _ := strings.Cut(b.store, ":"); scheme {
	case "sqlite":
		s, err = sqlitestore.Open(path, nil)
	case "mysql":
		s, err = mysqlstore.Open(t.Context(), b.store, nil)
	case "postgres":
		s, err = pgstore.Open(t.Context(), b.store, nil)
	default:
		s, err = redisstore.Open(t.Context(), b.store, nil)
	}
	testkit.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// entry returns what the store knows of a key; no Condition when that is nothing.
func entry(t *testing.T, s store.Inspector, key string) store.Entry {
	t.Helper()
	ns := ""
	for e, err := range s.List(context.Background(), store.Query{Namespace: &ns, Name: key}) {
		testkit.Must(t, err)
		return e
	}
	return store.Entry{}
}

// alive reports whether a process exists and is not a zombie.
func alive(t *testing.T, pid string) bool {
	t.Helper()
	out, err := exec.Command("ps", "-o", "stat=", "-p", strings.TrimSpace(pid)).Output()
	return err == nil && len(bytes.TrimSpace(out)) > 0 && !bytes.HasPrefix(bytes.TrimSpace(out), []byte("Z"))
}

// number reads a number that a test wrote down.
func number(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	testkit.Must(t, err)
	return n
}
