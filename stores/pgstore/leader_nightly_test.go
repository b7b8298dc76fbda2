//go:build nightly

package pgstore

import (
	"io"
	"os"
	osexec "os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// leaders is a journal behind a pooler in transaction mode, and the processes of examples/python/leader.py.
type leaders struct {
	t      *testing.T
	server *servertest.PostgresServer
	url    string
}

func newLeaders(t *testing.T) *leaders {
	t.Helper()
	l := &leaders{t: t, server: servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})}
	// One session for all clients, as a pooler has few.
	l.url = servertest.PgBouncer(t, l.server, &servertest.PgBouncerOptions{PoolSize: 4, Settings: loginSoon}).URL()
	open(t, l.server.URL(), &Options{Schema: "public"})
	l.server.Query("CREATE TABLE journal (n serial PRIMARY KEY, fence bigint NOT NULL)")
	return l
}

// start starts a process that stops at a point. It continues when its input has a line.
func (l *leaders) start(way, at string) (*failpoint.Child, io.Writer) {
	l.t.Helper()
	c := osexec.CommandContext(l.t.Context(), "env", "PYTHONDONTWRITEBYTECODE=1", "/usr/bin/python3", "testdata/points.py", "../../examples/python/leader.py")
	c.Env = append(os.Environ(), "DATABASE_URL="+l.url, "TTL=1 s", "WAY="+way)
	r, w, err := os.Pipe()
	testkit.Must(l.t, err)
	l.t.Cleanup(func() { w.Close() })
	c.Stdin = r
	child := failpoint.Start(l.t, at, c)
	r.Close()
	return child, w
}

// fences returns the fences of the journal, each once, in the order of its lines.
func (l *leaders) fences() (all []string) {
	for _, row := range l.server.Query("SELECT fence FROM journal ORDER BY n") {
		if len(all) == 0 || all[len(all)-1] != row[0] {
			all = append(all, row[0])
		}
	}
	return all
}

// TestLeadersInPython: a leader by SQL that is killed or paused at any step is followed by another
// one, and never writes after it.
func TestLeadersInPython(t *testing.T) {
	t.Parallel()
	for _, at := range []string{
		"after claim", "before hold", "after hold", "before write", "after write", "before COMMIT", "after COMMIT", "before renew", "after renew",
	} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			l := newLeaders(t)
			paused, goOn := l.start("cured", at)
			paused.Await()
			inTransaction := strings.HasSuffix(at, "hold") && at != "before hold" || strings.HasSuffix(at, "write") || at == "before COMMIT"
			next, _ := l.start("cured", "")
			if inTransaction { // the row is locked until the process continues or is killed
				testkit.Eventually(t, "the next one waits for the lock", func() bool { return l.server.Query("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")[0][0] == "t" })
			} else {
				next.Says()
			}
			_, err := io.WriteString(goOn, "go on\n")
			testkit.Must(t, err)
			if inTransaction {
				paused.Says() // its write was in time
			}
			paused.Kill()
			next.Says()
			next.Says()
			seen := map[string]bool{}
			for _, f := range l.fences() {
				if seen[f] {
					t.Errorf("a late write: the fences are %q", l.fences())
				}
				seen[f] = true
			}
			killed, _ := l.start("cured", at)
			next.Kill()
			killed.Await()
			killed.Kill()
			last, _ := l.start("cured", "")
			last.Says()
		})
	}
}

// TestTwoLeadersByAdvisoryLocks: behind a pooler in transaction mode, a lock of the session does not exclude
// a client that gets the same session.
func TestTwoLeadersByAdvisoryLocks(t *testing.T) {
	t.Parallel()
	l := newLeaders(t)
	l.url = servertest.PgBouncer(t, l.server, &servertest.PgBouncerOptions{PoolSize: 1, Settings: loginSoon}).URL()
	one, _ := l.start("broken", "")
	one.Says()
	two, _ := l.start("broken", "")
	two.Says()
	one.Says()
}

// TestLateWriteOfThePage: the page's session of psql shows a late write that is refused.
func TestLateWriteOfThePage(t *testing.T) {
	t.Parallel()
	_, session, _ := strings.Cut(string(testkit.ReadFile(t, "../../docs/guides/leases-by-sql.md")), "CREATE TABLE journal")
	session, _, _ = strings.Cut(session, "```")
	url := ownDatabase(shared())
	open(t, url, &Options{Schema: "public"})
	psql := osexec.CommandContext(t.Context(), "psql", "-X", "-A", "-t", url)
	psql.Stdin = strings.NewReader("CREATE TABLE journal" + session)
	out, err := psql.CombinedOutput()
	testkit.Must(t, err)
	fences := regexp.MustCompile(`granted\|\d+`).FindAllString(string(out), -1)
	if len(fences) != 2 || !strings.Contains(string(out), "ERROR:  dibs: the lease is lost\nDETAIL:") || !strings.HasSuffix(string(out), "ROLLBACK\n0\n") {
		t.Errorf("psql said:\n%s", out)
	}
}
