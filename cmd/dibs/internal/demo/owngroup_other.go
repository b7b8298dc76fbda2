//go:build !unix

package demo

import "syscall"

var ownGroup *syscall.SysProcAttr
