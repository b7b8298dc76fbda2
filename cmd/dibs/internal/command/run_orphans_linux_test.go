package command_test

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// The commands of a shell that wait until a process has ended, or until its parent has reaped it
// too. The number of the process is in the file pid.
const (
	reaped = `while test -e /proc/$(cat pid); do sleep 0.01; done; `
	ended  = `while grep -qs "^State:.[^ZX]" /proc/$(cat pid)/status; do sleep 0.01; done; `
)

// apart returns a program that runs a command in a namespace of processes, where the command is
// the first process. The command's group is one from outside of the namespace, whose number it
// sees as 0, unless it makes its own. It skips the test where the kernel allows no namespaces.
func apart(t *testing.T) []string {
	t.Helper()
	unshare := []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}
	if os.Getuid() != 0 {
		unshare = append(unshare, "--user", "--map-root-user")
	}
	if out, err := exec.Command(unshare[0], append(unshare[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("this system allows no namespaces of processes: %v: %s", err, out)
	}
	return unshare
}

// TestRunAsFirstProcess: dibs run reaps the processes of the command that have ended, even if no
// other process does: in a container whose first process is dibs run, or another one that
// reaps nothing. A process that lives is found and ended there, too.
func TestRunAsFirstProcess(t *testing.T) {
	t.Parallel()
	outside := apart(t)
	for where, around := range map[string][]string{
		"its group is from outside":          outside,
		"its group is its own":               append(slices.Clone(outside), "setsid"),
		"below a process that reaps nothing": append(slices.Clone(outside), "env", first+"=yes", os.Args[0]),
	} {
		for what, c := range map[string]struct{ command, says string }{
			"no orphan":           {"exit 3", ""},
			"an orphan that ends": {`sh -c 'sleep 0.1 & echo $! > pid'; ` + reaped + "exit 3", ""},
			"many orphans":        {`sh -c 'for i in 1 2 3 4 5 6 7 8; do true & done; sleep 0.1 & echo $! > pid'; ` + reaped + "exit 3", ""},
			"an orphan that lives": {
				`sh -c 'sleep 1000 & echo $! > pid'; exit 3`,
				"dibs run: the command left processes behind; they were ended (see --leave-children)\n",
			},
		} {
			t.Run(where+": "+what, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				p := b.command(append(slices.Clone(around[1:]), binary, "run", "k", "--", "sh", "-c", c.command)...)
				p.Path = lookPath(t, around[0])
				if code := p.begin(t).code(t); code != 3 || p.stderr.String() != c.says {
					t.Errorf("%d, %q; want 3, %q", code, p.stderr.String(), c.says)
				}
				if e := entry(t, b.inspector(t), "k"); e.Condition != "" {
					t.Errorf("the key is still %s", e.Condition)
				}
			})
		}
	}
}

func lookPath(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	testkit.Must(t, err)
	return path
}

// TestRunZombieOfAnother: a zombie whose parent left the command's group, and does not reap it, is
// not a process that the command left behind.
func TestRunZombieOfAnother(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	t.Cleanup(func() {
		if pid, err := strconv.Atoi(strings.TrimSpace(b.read("away"))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	code, _, stderr := b.run(t, "run", "k", "--", "sh", "-c",
		`(sleep 0.1 & echo $! > pid; exec setsid sh -c 'echo $$ > away; exec sleep 1000 > /dev/null 2>&1') & until test -s away; do sleep 0.01; done; `+ended)
	if code != 0 || stderr != "" {
		t.Errorf("%d, %q", code, stderr)
	}
	if !alive(t, b.read("away")) || alive(t, b.read("pid")) {
		t.Error("there was no zombie")
	}
}

// TestRunAdoptsNobodyForGood: a daemon that the command made in a group of its own lives on after
// dibs run, which was its parent meanwhile.
func TestRunAdoptsNobodyForGood(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	code, _, stderr := b.run(t, "run", "k", "--", "sh", "-c",
		`(setsid sh -c 'echo $$ > away; exec sleep 1000 > /dev/null 2>&1' &); until test -s away; do sleep 0.01; done`)
	pid, err := strconv.Atoi(strings.TrimSpace(b.read("away")))
	testkit.Must(t, err)
	defer syscall.Kill(pid, syscall.SIGKILL)
	if code != 0 || stderr != "" || !alive(t, b.read("away")) {
		t.Errorf("%d, %q; it lives: %v", code, stderr, alive(t, b.read("away")))
	}
}
