//go:build unix

package demo

import "syscall"

// ownGroup keeps the processes that the demo ends out of the terminal's group, which a
// Ctrl-C reaches.
var ownGroup = &syscall.SysProcAttr{Setpgid: true}
