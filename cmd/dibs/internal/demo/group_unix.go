//go:build unix

package demo

import "syscall"

// ownGroup keeps a Ctrl-C, which goes to the whole group of a terminal, from
// the processes that the demo ends itself.
var ownGroup = &syscall.SysProcAttr{Setpgid: true}
