//go:build unix

package servertest

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// living is a server whose life is tested.
type living struct {
	*server
	add   func() error           // adds one to what the server keeps
	count func() (string, error) // how often that was
	hang  func() error           // a call that takes long
	hangs func() bool            // there is such a call
}

func livingRedis(owner Owner) living {
	s := Redis(owner, &RedisOptions{Persistence: AOF})
	return living{
		server: &s.server,
		add:    func() error { _, err := s.Do("INCR", "kept"); return err },
		count:  func() (string, error) { n, err := s.Do("GET", "kept"); return fmt.Sprint(n), err },
		hang:   func() error { _, err := s.Do("BLPOP", "nothing", "60"); return err },
		hangs:  func() bool { return s.Info("blocked_clients") == "1" },
	}
}

// livingSQL is a server that can be asked by SQL.
func livingSQL(s *server, do func(string) ([][]string, error), sleep, sleeping string) living {
	ask := func(sql string) func() (string, error) {
		return func() (string, error) {
			rows, err := do(sql)
			if err != nil {
				return "", err
			}
			return rows[0][0], nil
		}
	}
	running := ask(sleeping)
	return living{
		server: s,
		add: func() error {
			_, err := do("CREATE TABLE IF NOT EXISTS kept (n INT); INSERT INTO kept VALUES (1)")
			return err
		},
		count: ask("SELECT count(*) FROM kept"),
		hang:  func() error { _, err := do(sleep); return err },
		hangs: func() bool { n, err := running(); return err == nil && n == "1" },
	}
}

func livingPostgres(owner Owner) living {
	s := Postgres(owner, nil)
	return livingSQL(&s.server, s.Do, "SELECT pg_sleep(60)", "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'")
}

func livingMariaDB(owner Owner) living {
	s := MariaDB(owner, nil)
	return livingSQL(&s.server, s.Do, "DO SLEEP(60); SELECT NO_SUCH_FUNCTION()", "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'")
}

// TestLife: a server ends even if it is paused or a client is connected, comes back at its address with
// what it had, answers nothing while it is paused, and leaves nothing when its owner ends.
func TestLife(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(Owner) living{"Redis": livingRedis, "PostgreSQL": livingPostgres, "MariaDB": livingMariaDB} {
		for how, end := range map[string]func(*server){
			"stopped":            (*server).Stop,
			"killed":             (*server).Kill,
			"paused and stopped": func(s *server) { s.Pause(); s.Stop() },
			"paused and killed":  func(s *server) { s.Pause(); s.Kill() },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				scope := NewScope()
				t.Cleanup(scope.Close)
				s := begin(scope)
				testkit.Must(t, s.add())
				checkEnd(t, s, end)
				testkit.Must(t, s.add())
				running := s.proc
				if s.Restart(); s.proc == running {
					t.Error("it runs on after a restart")
				}
				checkPause(t, s)
				if n, err := s.count(); n != "3" || err != nil {
					t.Errorf("it has kept %q, %v; want 3", n, err)
				}
				if strings.HasPrefix(how, "paused") {
					s.Pause()
				}
				checkLeavesNothing(t, s, scope)
			})
		}
	}
}

// checkEnd: the server ends under a call, and comes back.
func checkEnd(t *testing.T, s living, end func(*server)) {
	t.Helper()
	addr := s.Addr()
	asked := make(chan error, 1)
	go func() { asked <- s.hang() }()
	testkit.Eventually(t, "the call", s.hangs)
	all := family(t, s.proc)
	end(s.server)
	if err := <-asked; err == nil {
		t.Error("a connection outlived the server")
	}
	for _, pid := range all {
		if !ended(pid) {
			t.Errorf("process %d of %v is left", pid, all)
		}
	}
	if s.Running() {
		t.Error("it runs after its end")
	}
	if killed := s.proc.outcome == "signal: killed"; killed != strings.HasSuffix(t.Name(), "killed") {
		t.Errorf("it ended with %s", s.proc.outcome)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("it can be reached after its end")
	}
	// A process that asks for this port, as other servers do, is refused.
	other := net.ListenConfig{Control: withoutReuse}
	if l, err := other.Listen(t.Context(), "tcp", addr); err == nil {
		l.Close()
		t.Error("the address was free")
	}
	s.Restart()
	if s.Addr() != addr {
		t.Errorf("it is at %s after a restart; was at %s", s.Addr(), addr)
	}
}

// checkPause: a paused server does what it is asked when it continues.
func checkPause(t *testing.T, s living) {
	t.Helper()
	s.Pause()
	s.Pause() // twice in a row
	if !s.Running() {
		t.Error("it does not run while it is paused")
	}
	for _, pid := range family(t, s.proc) {
		if !stopped(pid) {
			t.Errorf("process %d has not stopped", pid)
		}
	}
	asked := make(chan error, 1)
	go func() { asked <- s.add() }()
	s.Continue()
	testkit.Check(t, <-asked)
}

// checkLeavesNothing: nothing is left when the owner ends, not even in the kernel.
func checkLeavesNothing(t *testing.T, s living, scope *Scope) {
	t.Helper()
	all := family(t, s.proc)
	if runtime.GOOS == "linux" && strings.HasPrefix(s.name, "postgres") && segmentLine(s.proc.pid) == "" {
		t.Error("the server has no segment of shared memory that could be left")
	}
	scope.Close()
	for _, pid := range all {
		if !ended(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
	if line := segmentLine(s.proc.pid); line != "" {
		t.Errorf("left in the kernel: %s", line)
	}
	if _, err := os.Stat(s.folder.path); !os.IsNotExist(err) {
		t.Errorf("its folder: %v", err)
	}
}

// family returns the processes of a server.
func family(t *testing.T, p *process) []int {
	t.Helper()
	children, err := descendants(p.pid)
	testkit.Must(t, err)
	return append(children, p.pid)
}

// segmentLine returns what Linux says of the shared memory that a process made, or "".
func segmentLine(pid int) string {
	segments, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(segments)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == strconv.Itoa(pid) {
			return line
		}
	}
	return ""
}

// errorText is the text of an error that may be nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// awaitRow waits until the answer is one row of one field.
func awaitRow(t *testing.T, do func(string) ([][]string, error), sql, want string) {
	t.Helper()
	testkit.Eventually(t, sql+": "+want, func() bool {
		rows, err := do(sql)
		return err == nil && len(rows) == 1 && rows[0][0] == want
	})
}
