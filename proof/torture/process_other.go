//go:build !unix

package torture

import "errors"

// killed reports whether the process was ended by force, which shows in its code.
func (p *process) killed() bool { return !p.cmd.ProcessState.Success() }

func (p *process) stop() (bool, error) {
	return false, errors.New("a process cannot be stopped on this system; leave that fault out")
}

func (p *process) goOn() error { return nil }
