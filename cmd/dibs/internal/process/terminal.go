//go:build unix

package process

import (
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal, which this program's group and the command's group
// share. One of them is in its foreground, and a process of the other that wants the terminal is
// stopped by the kernel. A nil *terminal is none.
type terminal struct {
	fd      int
	own     int            // this program's group, maybe with a pager or a script
	command int            // the command's group
	gave    bool           // the command's group was put into the foreground
	stops   chan os.Signal // SIGTSTP, SIGTTIN and SIGTTOU to this program's group
	resumed chan os.Signal // SIGCONT to this program
}

// jobSignals ask a group to stop.
var jobSignals = []os.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}

// openTerminal returns the controlling terminal, or nil.
func openTerminal(command int) *terminal {
	// Not os.OpenFile, which would make the terminal non-blocking.
	fd, err := syscall.Open("/dev/tty", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &terminal{
		fd: fd, own: syscall.Getpgrp(), command: command,
		stops: make(chan os.Signal, 4), resumed: make(chan os.Signal, 1),
	}
}

// front returns the group in the foreground, or 0.
func (t *terminal) front() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// give puts the command's group into the foreground, if this program's group is there.
func (t *terminal) give() {
	if t != nil && t.front() == t.own {
		t.gave = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.command) == nil
	}
}

// takeBack puts this program's group into the foreground, if the command's is there or was there
// and is gone. It reports whether it did. SIGTTOU must be ignored, because it would stop a program
// that does this from the background.
func (t *terminal) takeBack() bool {
	front := t.front()
	gone := t.gave && front != t.own && syscall.Kill(-front, 0) == syscall.ESRCH
	return (front == t.command || gone) && unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.own) == nil
}

// listenEarly starts to receive the signals of job control before the command starts, so that none
// stops this program alone. Those that are ignored can wait until listen: a command inherits that.
func (t *terminal) listenEarly() {
	if t == nil {
		return
	}
	for _, s := range jobSignals {
		if !signal.Ignored(s) {
			signal.Notify(t.stops, s)
		}
	}
}

// listen starts to receive the signals of job control, and SIGCONT. Call it after the command has
// started.
func (t *terminal) listen() {
	if t != nil {
		signal.Notify(t.stops, jobSignals...)
		signal.Notify(t.resumed, syscall.SIGCONT)
	}
}

// close gives up the terminal, and passes on the signal that the keyboard sent to the command
// alone: a script or a pipeline around this program ends as if the command were in its group.
func (t *terminal) close(killedBy syscall.Signal) {
	if t == nil {
		return
	}
	signal.Stop(t.stops)
	signal.Stop(t.resumed)
	signal.Ignore(syscall.SIGTTOU) // for the rest of this program, which may write to the terminal
	if t.takeBack() {
		if killedBy == syscall.SIGINT || killedBy == syscall.SIGQUIT {
			_ = syscall.Kill(0, killedBy)
		}
		_ = syscall.Kill(0, syscall.SIGCONT) // for a pager that wanted the terminal until now
	}
	_ = syscall.Close(t.fd)
	t.fd = -1
}

// stop stops this program's group until a shell continues it, and reports whether it was stopped:
// there may be no shell.
func (t *terminal) stop() bool {
	if !stoppable(t.own) {
		return false
	}
	select {
	case <-t.resumed:
	default:
	}
	// The group has the signal of job control already. This program ignores that one, and a stop
	// that cannot be ignored is certain.
	if syscall.Kill(os.Getpid(), syscall.SIGSTOP) != nil {
		return false
	}
	<-t.resumed
	return true
}

// stoppable reports whether a parent of the group's processes can continue the group: a shell of
// the same session in another group. The kernel does not stop an orphaned group either.
func stoppable(group int) bool {
	session, err := unix.Getsid(0)
	if err != nil {
		return false
	}
	for pid := os.Getppid(); pid > 0; pid = parent(pid) {
		g, err := unix.Getpgid(pid)
		if err != nil {
			return false
		}
		if g != group {
			s, err := unix.Getsid(pid)
			return err == nil && s == session
		}
	}
	return false
}

// parent returns the parent of a process, or 0.
func parent(pid int) int {
	var fields []string
	if text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err == nil {
		// The name, in brackets, can have blanks and brackets.
		rest := text[strings.LastIndexByte(string(text), ')')+1:]
		fields = strings.Fields(string(rest))[1:]
	} else if out, err := exec.Command("ps", "-o", "ppid=", "-p", strconv.Itoa(pid)).Output(); err == nil {
		fields = strings.Fields(string(out))
	}
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[0])
	return n
}
