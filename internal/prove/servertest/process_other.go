//go:build unix && !linux

package servertest

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent does nothing on this system: a killed test binary leaves its servers.
func dieWithParent(*syscall.SysProcAttr) {}

// stopped always returns true on this system.
func stopped(int) bool { return true }

// ended reports whether a process has ended.
func ended(pid int) bool { return syscall.Kill(pid, 0) != nil }

// descendants returns the children of a process and their children.
func descendants(root int) ([]int, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	children := map[int][]int{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		pid, err := strconv.Atoi(fields[0])
		if err != nil {
			return nil, err
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, err
		}
		children[parent] = append(children[parent], pid)
	}
	found := []int{root}
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found[1:], nil
}

// removeSegment does nothing on this system.
func removeSegment(string) error { return nil }
