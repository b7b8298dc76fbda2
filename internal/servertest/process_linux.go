package servertest

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// dieWithParent has the kernel kill the child when the thread that started it
// ends. Not even a stopped process survives that.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// stopped reports whether a SIGSTOP has taken effect: the signal is sent before
// the process notices.
func (p *process) stopped() bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/stat")
	if err != nil {
		return true // gone
	}
	// "pid (name) state …", and the name may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) > 0 && (fields[0][0] == 'T' || fields[0][0] == 'Z')
}
