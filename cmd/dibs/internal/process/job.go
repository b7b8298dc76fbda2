//go:build unix

package process

import (
	"os"
	"os/signal"
	"syscall"
)

// Stops receives a signal when the command has stopped, if there is a terminal. Give it to
// CommandStopped.
func (p *Process) Stops() <-chan syscall.Signal { return p.stops }

// Asks receives the signals SIGTSTP, SIGTTIN and SIGTTOU that were sent to this program's group, if
// there is a terminal. Give them to AskedToStop.
func (p *Process) Asks() <-chan os.Signal {
	if p.terminal == nil {
		return nil
	}
	return p.terminal.stops
}

// Suspension says what happens around the time for which this program is stopped.
type Suspension struct {
	// Stopping is called before this program stops.
	Stopping func()
	// MayContinue says whether the command may go on after this program was continued. If not,
	// the command stays stopped: call End.
	MayContinue func() bool
}

// CommandStopped does what has to follow when a signal has stopped the command. If the command
// wants the terminal, and this program's group has it, the command gets it. Otherwise this program
// stops too, as if the command were in its group, until the shell continues it.
func (p *Process) CommandStopped(by syscall.Signal, s Suspension) {
	t := p.terminal
	wants := by == syscall.SIGTTIN || by == syscall.SIGTTOU
	switch front := t.front(); {
	case wants && front == t.own:
		t.give()
		p.resume()
	case by == syscall.SIGSTOP && front != t.command:
		// Another process sent it, and will continue the command.
	default:
		if by == syscall.SIGSTOP {
			by = syscall.SIGTSTP // because SIGSTOP gives a pager no time to restore the terminal
		}
		p.suspend(s, wants || front == t.command, func() { _ = syscall.Kill(0, by) })
		if wants && t.front() != t.own && !stoppable(t.own) {
			// No shell will ever put it into the foreground. The kernel ends such a group so.
			_ = p.Signal(syscall.SIGHUP)
		}
	}
}

// AskedToStop does what has to follow when this program's group gets a signal that stops it. If a
// process of the group wants the terminal, and the command has it, the group gets it back.
// Otherwise the command stops too.
func (p *Process) AskedToStop(by os.Signal, s Suspension) {
	t := p.terminal
	if front := t.front(); by != syscall.SIGTSTP && (front == t.command || front == t.own) {
		signal.Ignore(syscall.SIGTTOU)
		t.takeBack()
		_ = syscall.Kill(0, syscall.SIGCONT)
		t.listen()
		return
	}
	p.suspend(s, t.front() == t.command, func() { _ = p.Signal(syscall.SIGTSTP) })
}

// suspend stops this program's group and the command's, and continues the command afterwards, in
// the foreground if it wants that and the shell allows it. stopOthers stops the group that is not
// stopped yet.
func (p *Process) suspend(s Suspension, wants bool, stopOthers func()) {
	t := p.terminal
	signal.Ignore(jobSignals...) // because stopOthers sends them to this program too
	t.takeBack()
	s.Stopping()
	stopOthers()
	t.stop()
	t.listen()
	if !s.MayContinue() {
		return
	}
	if wants {
		t.give()
	}
	p.resume()
}

// resume continues the command's group, and drops what was noticed before.
func (p *Process) resume() {
	p.mu.Lock() // because collect reports only a command that is stopped now
	defer p.mu.Unlock()
	_ = p.Signal(syscall.SIGCONT)
	for {
		select {
		case <-p.stops:
		case <-p.terminal.stops:
		default:
			return
		}
	}
}
