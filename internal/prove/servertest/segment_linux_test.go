package servertest

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// A server that ends in any way leaves nothing, not even in the kernel.
func TestPostgresLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*PostgresServer){
		"running": func(*PostgresServer) {},
		"killed":  (*PostgresServer).Kill,
		"paused":  func(s *PostgresServer) { s.Pause() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scope := NewScope()
			s := Postgres(scope, &PostgresOptions{NoSync: true})
			processes := family(t, s.proc)
			segment := segmentLine(t, processes[len(processes)-1])
			if segment == "" {
				t.Error("the server has no segment of shared memory that could be left")
			}
			end(s)
			scope.Close()
			for _, pid := range processes {
				if !ended(pid) {
					t.Errorf("process %d is left", pid)
				}
			}
			if left := segmentLine(t, s.proc.pid); left != "" {
				t.Errorf("left in the kernel: %s", left)
			}
			if _, err := os.Stat(s.folder.path); !os.IsNotExist(err) {
				t.Errorf("its folder: %v", err)
			}
		})
	}
}

// segmentLine returns what the kernel says of the shared memory that a process
// made, or "".
func segmentLine(t *testing.T, pid int) string {
	t.Helper()
	segments := testkit.ReadFile(t, "/proc/sysvipc/shm")
	for line := range strings.Lines(string(segments)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == strconv.Itoa(pid) {
			return line
		}
	}
	return ""
}
