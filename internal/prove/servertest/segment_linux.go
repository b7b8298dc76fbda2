package servertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// removeSegment removes the shared memory by which PostgreSQL marks a data folder as
// used. A killed server leaves it, and the system has room for a few thousand. It fails
// if a process of the server is alive.
func removeSegment(dir string) error {
	pidFile, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		return nil // not PostgreSQL, or shut down cleanly
	}
	lines := strings.Split(string(pidFile), "\n")
	if len(lines) < 7 {
		return nil // killed before it had shared memory
	}
	want := strings.Fields(lines[6]) // key and number
	segments, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil || len(want) != 2 {
		return err
	}
	for line := range strings.Lines(string(segments)) {
		// key, number, permissions, size, creator, last user, number of users, …
		have := strings.Fields(line)
		if len(have) < 7 || have[1] != want[1] || have[4] != strings.TrimSpace(lines[0]) {
			continue
		}
		if have[6] != "0" {
			return fmt.Errorf("%s is in use", dir)
		}
		if out, err := exec.Command("ipcrm", "-m", want[1]).CombinedOutput(); err != nil {
			return fmt.Errorf("removing shared memory: %w: %s", err, out)
		}
	}
	return nil
}
