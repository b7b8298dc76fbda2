package servertest

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// dieWithParent makes the kernel kill the child, even a stopped one, when the thread that
// started it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// stopped reports whether all threads of a process have stopped, or it has ended.
func stopped(pid int) bool {
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	return err == nil && !slices.ContainsFunc(threads, func(stat string) bool {
		state, _, ok := readStatus(stat)
		return ok && state != 'T' && state != 'Z'
	})
}

// ended reports whether a process has ended. It may be a zombie.
func ended(pid int) bool {
	state, _, ok := status(pid)
	return !ok || state == 'Z'
}

// descendants returns the children of a process and their children. It is complete if
// none of them ends meanwhile.
func descendants(root int) ([]int, error) {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			return nil, err
		}
		if _, parent, ok := status(pid); ok {
			children[parent] = append(children[parent], pid)
		}
	}
	found := []int{root}
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found[1:], nil
}

// status returns a process's state and parent.
func status(pid int) (state byte, parent int, ok bool) {
	return readStatus("/proc/" + strconv.Itoa(pid) + "/stat")
}

// readStatus reads the status of a process or a thread.
func readStatus(file string) (state byte, parent int, ok bool) {
	stat, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, false
	}
	// "pid (name) state parent …"; the name may contain anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, 0, false
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return fields[0][0], parent, err == nil
}
