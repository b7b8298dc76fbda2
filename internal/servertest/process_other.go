//go:build unix && !linux

package servertest

import "syscall"

// dieWithParent does nothing where the kernel offers nothing: a test binary
// that is killed leaves its servers.
func dieWithParent(*syscall.SysProcAttr) {}

// stopped takes the kernel's word for it.
func (p *process) stopped() bool { return true }
