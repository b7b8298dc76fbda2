package command_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestRunInTerminal: the command is in the terminal's foreground: it reads the input and gets
// Ctrl-C. Afterwards the caller is in the foreground again.
func TestRunInTerminal(t *testing.T) {
	b := newBench(t)
	keyboard, terminal := openTerminal(t)
	// A shell that continues after the program, in the same terminal.
	p := b.command()
	p.Path = "/bin/sh"
	p.Args = []string{"sh", "-c", `
"$0" run k -- sh -c 'read line; echo "$line" > typed'
echo $? > first
"$0" run k -- sh -c 'trap "echo > interrupted; exit 7" INT; echo > in; while :; do sleep 0.01; done'
echo $? > second
read line
echo "$line" > last`, binary}
	p.Stdin, p.Stdout, p.Stderr = terminal, terminal, terminal
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	p.begin(t)
	testkit.Must(t, terminal.Close())
	screen := make(chan string, 1)
	go func() {
		var all strings.Builder
		buf := make([]byte, 1024)
		for {
			n, err := keyboard.Read(buf)
			all.Write(buf[:n])
			if err != nil { // EIO: all processes have closed the terminal
				screen <- all.String()
				return
			}
		}
	}()
	typing := func(s string) {
		t.Helper()
		_, err := keyboard.WriteString(s)
		testkit.Must(t, err)
	}
	typing("hello\n")
	testkit.Eventually(t, "what was typed", func() bool { return b.read("typed") == "hello\n" && b.read("first") == "0\n" })
	testkit.Eventually(t, "the second command", func() bool { return b.read("in") != "" })
	typing("\x03")
	testkit.Eventually(t, "the end of the second command", func() bool { return b.read("second") != "" })
	if b.read("interrupted") == "" || b.read("second") != "7\n" {
		t.Errorf("Ctrl-C: interrupted %v, ended with %s", b.read("interrupted") != "", b.read("second"))
	}
	// The shell could not read if it were in the background.
	typing("bye\n")
	if code := p.code(t); code != 0 || b.read("last") != "bye\n" {
		t.Errorf("the shell exited with %d and had read %q; on the screen:\n%s", code, b.read("last"), <-screen)
	}
}

// openTerminal returns both ends of a new terminal.
func openTerminal(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	testkit.Must(t, err)
	t.Cleanup(func() { keyboard.Close() })
	testkit.Must(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetUint32(int(keyboard.Fd()), unix.TIOCGPTN)
	testkit.Must(t, err)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	testkit.Must(t, err)
	return keyboard, terminal
}
