package command_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore"
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

// TestColours: on a terminal a state that needs somebody has a colour. NO_COLOR and a pipe have none.
func TestColours(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s, err := sqlitestore.Open(b.path("dibs.db"), nil)
	testkit.Must(t, err)
	client, err := dibs.New(s, nil)
	testkit.Must(t, err)
	for key, once := range map[string]bool{"é-charge": true, "sync": false} {
		lease, err := client.Acquire(t.Context(), key, &dibs.AcquireOptions{AtMostOnce: once})
		testkit.Must(t, err)
		testkit.Must(t, lease.Abandon(t.Context()))
	}
	testkit.Must(t, client.Close())
	testkit.Must(t, s.Close())
	const unknown, abandoned = "\x1b[31munknown\x1b[0m", "\x1b[33mabandoned\x1b[0m"
	onTerminal := func(env string, args ...string) string {
		t.Helper()
		keyboard, terminal := openTerminal(t)
		p := b.command(args...)
		p.Env = append(p.Environ(), "TERM=xterm", env)
		p.Stdout = terminal
		p.begin(t)
		if code := p.code(t); code != 0 {
			t.Errorf("%q ended with %d", args, code)
		}
		// What was written is there now, and the terminal stays open.
		text := make([]byte, 1<<16)
		n, err := keyboard.Read(text)
		testkit.Must(t, err)
		testkit.Must(t, terminal.Close())
		return string(text[:n])
	}
	text := onTerminal("A=b", "ls")
	if strings.Count(text, "\x1b[") != 4 || !strings.Contains(text, " "+unknown+" ") || !strings.Contains(text, " "+abandoned+" ") {
		t.Errorf("ls prints %q", text)
	}
	if text := onTerminal("A=b", "show", "é-charge"); !strings.Contains(text, "\x1b[31munknown: it may") {
		t.Errorf("show prints %q", text)
	}
	for _, env := range []string{"NO_COLOR=1", "TERM=dumb"} {
		if text := onTerminal(env, "ls"); strings.Contains(text, "\x1b") || !strings.Contains(text, "unknown") {
			t.Errorf("with %s ls prints %q", env, text)
		}
	}
	if code, stdout, _ := b.run(t, "ls"); code != 0 || strings.Contains(stdout, "\x1b") {
		t.Errorf("a pipe gets %q", stdout)
	}
}

// TestChangedMeanwhile: while the operator reads the question, other attempts come. The answer is
// about those that the question is about, and about no others.
func TestChangedMeanwhile(t *testing.T) {
	for _, test := range []struct {
		name, says string
		args       []string // %ID% is the ID of the first attempt
		before     store.Settlement
	}{
		{"forgetByKey", "has changed meanwhile: nothing was forgotten", []string{"forget", "k"}, store.Settlement{Outcome: store.Keep, Data: []byte("1"), Retention: time.Hour}},
		{"forgetByID", "has changed meanwhile: nothing was forgotten", []string{"forget", "--id", "%ID%"}, store.Settlement{Outcome: store.Keep, Data: []byte("1"), Retention: time.Hour}},
		{"forgetByGlob", "has changed meanwhile: nothing was forgotten", []string{"forget", "--glob", "k*"}, store.Settlement{Outcome: store.Abandon}},
		{"release", "there is no holder of the key k any more", []string{"release", "k"}, store.Settlement{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			s := b.inspector(t)
			key := store.Key{Name: "k"}
			claim := func(token store.Token) {
				t.Helper()
				answers := make([]store.Answer, 1)
				testkit.Must(t, s.Claim(t.Context(), []store.Claim{{Key: key, Token: token, TTL: time.Hour, Permits: 1, Weight: 1, AtMostOnce: true}}, answers))
				if answers[0].State != store.Granted {
					t.Fatalf("the claim found %+v", answers[0])
				}
			}
			settle := func(token store.Token, x store.Settlement) {
				t.Helper()
				x.Key, x.Token = key, token
				errs := make([]error, 1)
				testkit.Must(t, s.Settle(t.Context(), []store.Settlement{x}, errs))
				testkit.Must(t, errs[0])
			}
			first, second := store.NewToken(), store.NewToken()
			claim(first)
			if test.name != "release" {
				settle(first, test.before)
			}
			for i := range test.args {
				test.args[i] = strings.ReplaceAll(test.args[i], "%ID%", first.ID())
			}
			keyboard, terminal := openTerminal(t)
			p := b.command(test.args...)
			p.Stdin = terminal
			p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
			p.begin(t)
			testkit.Must(t, terminal.Close())
			testkit.Eventually(t, "the question", func() bool { return strings.Contains(p.stderr.String()+p.stdout.String(), "?") })
			_, err := s.ForceRelease(t.Context(), key, "")
			testkit.Must(t, err)
			claim(second)
			if test.name != "release" {
				settle(second, store.Settlement{Outcome: store.Abandon})
				if test.before.Outcome == store.Keep { // somebody else has forgotten the record
					_, err := s.Forget(t.Context(), key, first.ID())
					testkit.Must(t, err)
				}
			}
			_, err = keyboard.WriteString("y\n")
			testkit.Must(t, err)
			if code := p.code(t); code != 1 || !strings.Contains(p.stderr.String(), test.says) {
				t.Errorf("it exited with %d and said %q", code, p.stderr.String())
			}
			if e := entry(t, s, "k"); len(e.Runs) != 1 || e.Runs[0].ID != second.ID() {
				t.Errorf("after that the key is %+v; want the second attempt", e)
			}
		})
	}
}
