package command_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// shell is an interactive shell in a terminal of its own.
type shell struct {
	*bench
	keyboard *os.File
	screen   testkit.Output
}

// newShell starts bash in the folder of a bench. $dibs is the program.
func newShell(t *testing.T) *shell {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal("the test needs bash, whose job control it tests")
	}
	s := &shell{bench: newBench(t)}
	testkit.Must(t, syscall.Mkfifo(s.path("gate"), 0o600))
	s.write(t, "lasting", "echo $$ >pid; read word <gate; echo ended >ended")
	var terminal *os.File
	s.keyboard, terminal = openTerminal(t)
	p := s.command()
	p.Path, p.Args = bash, []string{"bash", "--norc", "--noprofile", "--noediting", "-i"}
	p.Env = append(p.Env, "dibs="+binary, "HISTFILE=", "PS1=", "TERM=vt100", "LESS=", "LC_ALL=C")
	p.Stdin, p.Stdout, p.Stderr = terminal, terminal, terminal
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	p.begin(t)
	testkit.Must(t, terminal.Close())
	go func() {
		buf := make([]byte, 1024)
		for {
			n, err := s.keyboard.Read(buf)
			_, _ = s.screen.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("on the screen:\n%s", s.screen.String())
		}
	})
	return s
}

func (s *shell) types(t *testing.T, keys string) {
	t.Helper()
	_, err := s.keyboard.WriteString(keys)
	testkit.Must(t, err)
}

// waits waits for a file that has a whole line.
func (s *shell) waits(t *testing.T, name string) string {
	t.Helper()
	testkit.Eventually(t, "the file "+name, func() bool { return strings.HasSuffix(s.read(name), "\n") })
	return strings.TrimSpace(s.read(name))
}

// stopped reports whether a process is stopped.
func stopped(pid string) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", pid).Output()
	return err == nil && strings.HasPrefix(string(out), "T")
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// lasting is a command that runs until open. It starts no process meanwhile, because a shell that
// just does that cannot be stopped.
const lasting = `sh ./lasting`

// open lets the command lasting end.
func (s *shell) open(t *testing.T) {
	t.Helper()
	gate, err := os.OpenFile(s.path("gate"), os.O_RDWR, 0)
	testkit.Must(t, err)
	t.Cleanup(func() { gate.Close() })
	_, err = gate.WriteString("go\n")
	testkit.Must(t, err)
}

// TestRunCtrlZ: Ctrl-Z stops the command and the program, the shell has the terminal, and fg or bg
// continues both.
func TestRunCtrlZ(t *testing.T) {
	t.Parallel()
	for _, form := range []struct{ name, line string }{
		{"alone", `"$dibs" run --lease 1h k -- ` + lasting},
		{"piped", `"$dibs" run --lease 1h k -- ` + lasting + ` | cat`},
		{"script", `sh -c '"$dibs" run --lease 1h k -- sh ./lasting; true'`},
	} {
		for _, resume := range []string{"fg", "bg"} {
			t.Run(form.name+" "+resume, func(t *testing.T) {
				t.Parallel()
				s := newShell(t)
				s.types(t, form.line+"; echo $? >code\n")
				pid := s.waits(t, "pid")
				for range 2 { // it can be stopped again
					s.types(t, ctrlZ)
					testkit.Eventually(t, "the command to be stopped", func() bool { return stopped(pid) })
					_ = os.Remove(s.path("listed"))
					s.types(t, "jobs >list; echo >listed\n")
					s.waits(t, "listed")
					if list := s.read("list"); !strings.Contains(list, "Stopped") {
						t.Fatalf("the jobs are %q", list)
					}
					s.types(t, resume+"\n")
					testkit.Eventually(t, "the command to run", func() bool { return !stopped(pid) })
					if resume == "bg" {
						break
					}
				}
				s.open(t)
				s.waits(t, "ended")
				s.types(t, "wait; echo >over\n")
				s.waits(t, "over")
				if code, _, stderr := s.run(t, "run", "--skip", "k", "--", "true"); code != 0 {
					t.Errorf("the key is not free: %d %s", code, stderr)
				}
			})
		}
	}
}

// TestRunCtrlC: Ctrl-C ends the command, and a loop of the shell around it, after it was stopped
// and continued, too.
func TestRunCtrlC(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.types(t, `"$dibs" run k -- `+lasting+"\n")
	pid := s.waits(t, "pid")
	s.types(t, ctrlZ)
	testkit.Eventually(t, "the command to be stopped", func() bool { return stopped(pid) })
	s.types(t, "fg; echo $? >code\n")
	testkit.Eventually(t, "the command to run", func() bool { return !stopped(pid) })
	s.types(t, ctrlC)
	if code := s.waits(t, "code"); code != "130" {
		t.Errorf("it ended with %s", code)
	}
	s.types(t, `sh -c 'for i in 1 2 3; do echo $i >>rounds; "$dibs" run k -- sleep 600; done'`+"\n")
	testkit.Eventually(t, "the loop", func() bool { return holds(t, s.bench) })
	s.types(t, ctrlC)
	s.types(t, "echo $? >loop\n") // a line of its own, because bash ends the line with the loop
	if code := s.waits(t, "loop"); code != "130" || len(s.lines("rounds")) != 1 {
		t.Errorf("the loop ended with %s after the rounds %q", code, s.lines("rounds"))
	}
}

// holds reports whether the key k is held.
func holds(t *testing.T, b *bench) bool {
	t.Helper()
	if !b.exists("dibs.db") {
		return false
	}
	code, stdout, _ := b.run(t, "show", "k")
	return code == 0 && strings.Contains(stdout, "held")
}

// TestRunPager: a pager that reads the output has the keyboard, even after the command asked for
// a line there.
func TestRunPager(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.types(t, `"$dibs" run k -- seq 1000 | less; echo $? >first`+"\n")
	testkit.Eventually(t, "the pager", func() bool { return strings.Contains(s.screen.String(), "\n9") })
	s.types(t, "q")
	if code := s.waits(t, "first"); code != "0" {
		t.Errorf("it ended with %s", code)
	}
	s.types(t, `"$dibs" run k -- sh -c 'echo >asks; read word </dev/tty; echo "$word" >word; seq 3000 3999' | less; echo $? >second`+"\n")
	s.waits(t, "asks")
	s.types(t, "secret\n")
	if word := s.waits(t, "word"); word != "secret" {
		t.Errorf("the command read %q", word)
	}
	testkit.Eventually(t, "the pager", func() bool { return strings.Contains(s.screen.String(), "\n3009") })
	s.types(t, "q")
	if code := s.waits(t, "second"); code != "0" {
		t.Errorf("it ended with %s", code)
	}
	s.types(t, `cat | "$dibs" run k -- cat >copy; echo $? >third`+"\n")
	s.types(t, "typed\n\x04")
	if code := s.waits(t, "third"); code != "0" || s.read("copy") != "typed\n" {
		t.Errorf("it ended with %s and has %q", code, s.read("copy"))
	}
}

// TestRunInBackground: a command that wants the terminal in the background is stopped, as every
// job is, and reads after fg. The same with a terminal that stops what writes from there.
func TestRunInBackground(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.types(t, `"$dibs" run --lease 1h k -- sh -c 'echo $$ >pid; read word; echo "$word" >word' &`+"\n")
	pid := s.waits(t, "pid")
	testkit.Eventually(t, "the command to be stopped", func() bool { return stopped(pid) })
	s.types(t, "fg; echo $? >first\n")
	testkit.Eventually(t, "the command to run", func() bool { return !stopped(pid) })
	s.types(t, "hello\n")
	if word, code := s.waits(t, "word"), s.waits(t, "first"); word != "hello" || code != "0" {
		t.Errorf("it read %q and ended with %s", word, code)
	}
	s.types(t, "stty tostop\n"+`"$dibs" run --lease 1h k -- sh -c 'echo $$ >writer; echo on the screen; echo >wrote' &`+"\n")
	pid = s.waits(t, "writer")
	testkit.Eventually(t, "the command to be stopped", func() bool { return stopped(pid) })
	s.types(t, "fg; echo $? >second\n")
	s.waits(t, "wrote")
	if code := s.waits(t, "second"); code != "0" {
		t.Errorf("it ended with %s", code)
	}
}

// TestRunStoppedTooLong: a command that was stopped for longer than its lease is not continued: it
// is ended, because another process may have had the key.
func TestRunStoppedTooLong(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.types(t, `"$dibs" run --lease 2s k -- `+lasting+"\n")
	pid := s.waits(t, "pid")
	s.types(t, ctrlZ)
	testkit.Eventually(t, "the command to be stopped", func() bool { return stopped(pid) })
	under := s.inspector(t)
	testkit.Eventually(t, "the end of the lease", func() bool { return entry(t, under, "k").Condition == store.ConditionAbandoned })
	s.open(t)
	s.types(t, "fg; echo $? >code\n")
	if code := s.waits(t, "code"); code != "70" || s.exists("ended") {
		t.Errorf("it ended with %s; the command went on: %v", code, s.exists("ended"))
	}
}

// TestRunWithoutShell: in a terminal without a shell, nobody could continue what Ctrl-Z stops, so
// it stops nothing.
func TestRunWithoutShell(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	keyboard, terminal := openTerminal(t)
	p := b.command("run", "--lease", "1h", "k", "--", "sh", "-c", `echo $$ >pid; read line; echo "$line" >line`)
	p.Stdin, p.Stdout, p.Stderr = terminal, terminal, terminal
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	p.begin(t)
	testkit.Must(t, terminal.Close())
	testkit.Eventually(t, "the command", func() bool { return strings.HasSuffix(b.read("pid"), "\n") })
	_, err := keyboard.WriteString(ctrlZ + "on\n")
	testkit.Must(t, err)
	if code := p.code(t); code != 0 || b.read("line") != "on\n" {
		t.Errorf("it exited with %d and read %q", code, b.read("line"))
	}
}
