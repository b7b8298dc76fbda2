package sqlitestore

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// children are what this test binary does when it is started as another process
// with the variable childVar set. They end when their standard input does.
var children = map[string]func(path string, input io.Reader) error{
	"count": childCount,
	"open":  childOpen,
	"book":  childBook,
	"serve": childServe,
}

const (
	childVar = "SQLITESTORE_TEST_CHILD"
	fileVar  = "SQLITESTORE_TEST_FILE"
	// killVar is at which entry a counting child kills itself, inside.
	killVar = "SQLITESTORE_TEST_KILL"
)

func TestMain(m *testing.M) {
	if child := children[os.Getenv(childVar)]; child != nil {
		if err := child(os.Getenv(fileVar), os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	// Tests that are parallel mostly wait, for the disk and for time.
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// process is a child.
type process struct {
	cmd    *exec.Cmd
	input  io.Closer
	errors bytes.Buffer
}

func start(t *testing.T, child, path string) *process {
	t.Helper()
	p := prepareChild(t, child, path)
	p.launch(t)
	return p
}

func prepareChild(t *testing.T, child, path string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), childVar+"="+child, fileVar+"="+path,
		"GORACE=atexit_sleep_ms=0") // the race detector makes every exit last a second
	p.cmd.Stderr = &p.errors
	input, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.input = input
	return p
}

func (p *process) launch(t *testing.T) {
	t.Helper()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
}

// end lets the child finish what it does.
func (p *process) end(t *testing.T) {
	t.Helper()
	if err := p.input.Close(); err != nil {
		t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the child ended with %v: %s", err, &p.errors)
	}
}

// childOpen opens the store, and says what came of it.
func childOpen(path string, input io.Reader) error {
	s, err := Open(path, nil)
	if err != nil {
		return err
	}
	c := lock("child " + strconv.Itoa(os.Getpid()))
	answers := make([]dibs.Answer, 1)
	if err := s.Claim(context.Background(), []dibs.Claim{c}, answers); err != nil {
		return err
	}
	if answers[0].State != dibs.Granted {
		return fmt.Errorf("the claim was answered %+v", answers[0])
	}
	if _, err := io.Copy(io.Discard, input); err != nil {
		return err
	}
	return s.Close()
}

// countTTL is the lease under which the children count.
const countTTL = 2 * time.Second

// childCount increments a plain number in a file again and again, under a lock.
// Into a second file it writes when it enters and when it leaves.
func childCount(path string, input io.Reader) error {
	s, err := Open(path, nil)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(path+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	count, err := os.OpenFile(path+".count", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	entries, _ := strconv.Atoi(os.Getenv(killVar)) // 0: it is not killed by itself
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, input)
		close(ended)
	}()
	wakes := make(chan dibs.Token, 1)
	defer s.Notify(func(t dibs.Token) {
		select {
		case wakes <- t:
		default:
		}
	})()
	for {
		select {
		case <-ended:
			return s.Close()
		default:
		}
		c := lock("counter")
		c.Mode, c.TTL, c.Place = dibs.Queue, countTTL, 500*time.Millisecond
		a, asked, err := untilGranted(s, c, wakes)
		if err != nil {
			return err
		}
		say := func(what string) {
			fmt.Fprintf(log, "%s %d %d %d %d %d\n", what, a.Fence, os.Getpid(), a.Attempt, asked, sinceBoot())
		}
		say("enter")
		if entries--; entries == 0 {
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				err = self.Kill()
			}
			if err != nil {
				return err
			}
			select {} // until the signal arrives
		}
		old, err := os.ReadFile(path + ".count")
		if err != nil {
			return err
		}
		n, _ := strconv.Atoi(string(old)) // at first there is nothing
		// One write of a fixed length: a kill leaves the old number or the new.
		if _, err := count.WriteAt(fmt.Appendf(nil, "%020d", n+1), 0); err != nil {
			return err
		}
		say("leave")
		errs := make([]error, 1)
		if err := s.Settle(context.Background(), []dibs.Settlement{release(c)}, errs); err != nil || errs[0] != nil {
			return fmt.Errorf("settle: %w, %w", err, errs[0])
		}
	}
}

// untilGranted waits for its turn, and says when it asked for what it got.
func untilGranted(s *Store, c dibs.Claim, wakes <-chan dibs.Token) (a dibs.Answer, asked int64, err error) {
	answers := make([]dibs.Answer, 1)
	for {
		answers[0] = dibs.Answer{}
		asked = sinceBoot()
		if err := s.Claim(context.Background(), []dibs.Claim{c}, answers); err != nil {
			return answers[0], asked, err
		}
		if a := answers[0]; a.State != dibs.Held || a.Err != nil {
			return a, asked, a.Err
		}
		select {
		case <-wakes:
		case <-time.After(min(answers[0].Left, c.Place/3)):
		}
	}
}

// Processes count under a lock; some are killed inside, others at any moment.
// Nobody enters
// while somebody else is inside, or before the lease of one that was killed
// inside has run out; nothing is counted twice or lost; and the file stays sound.
func TestProcessesAreKilled(t *testing.T) {
	t.Parallel()
	path := testFile(t)
	killed := map[int]bool{}
	var inside, outside []*process
	for i := range 3 {
		p := prepareChild(t, "count", path)
		p.cmd.Env = append(p.cmd.Env, killVar+"="+strconv.Itoa(4+3*i))
		p.launch(t)
		inside = append(inside, p)
		outside = append(outside, start(t, "count", path))
	}
	for _, p := range inside {
		_ = p.cmd.Wait() // it was killed, and says so
		killed[p.cmd.Process.Pid] = true
	}
	last := outside[2]
	for _, p := range outside[:2] {
		goOn(t, path, last)
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = p.cmd.Wait()
		killed[p.cmd.Process.Pid] = true
	}
	goOn(t, path, last)
	last.end(t)
	checkLog(t, path, killed)
	s := openTest(t, path, nil, hostClock)
	eventually(t, "the key is free", func() bool { return claimOne(t, s, lock("counter")).State == dibs.Granted })
}

// goOn waits until the process has entered some more times.
func goOn(t *testing.T, path string, p *process) {
	t.Helper()
	entered := func() (n int) {
		for _, e := range readLog(t, path) {
			if e.pid == p.cmd.Process.Pid {
				n++
			}
		}
		return n
	}
	before := entered()
	eventually(t, "a process goes on", func() bool { return entered() >= before+10 })
}

// entry is a line of the log.
type entry struct {
	what                             string
	fence, pid, attempt, asked, time int
}

func readLog(t *testing.T, path string) []entry {
	t.Helper()
	data, err := os.ReadFile(path + ".log")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var entries []entry
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		var e entry
		if _, err := fmt.Sscan(lines.Text(), &e.what, &e.fence, &e.pid, &e.attempt, &e.asked, &e.time); err != nil {
			t.Fatalf("the log has %q: %v", lines.Text(), err)
		}
		entries = append(entries, e)
	}
	return entries
}

func checkLog(t *testing.T, path string, killed map[int]bool) {
	t.Helper()
	var inside *entry
	last, entered, left := 0, 0, 0
	for _, e := range readLog(t, path) {
		switch e.what {
		case "enter":
			entered++
			if e.fence <= last {
				t.Errorf("fence %d came after %d", e.fence, last)
			}
			last = e.fence
			if inside == nil {
				break
			}
			if !killed[inside.pid] {
				t.Errorf("%+v entered while %+v was inside", e, *inside)
			}
			if e.attempt < 2 {
				t.Errorf("%+v was not told that %+v abandoned the key", e, *inside)
			}
			if waited := duration(int64(e.time - inside.asked)); waited < countTTL {
				t.Errorf("%+v entered %v after %+v had asked, whose lease lasted %v", e, waited, *inside, countTTL)
			}
		case "leave":
			left++
			if inside == nil || inside.fence != e.fence {
				t.Errorf("%+v left, inside was %+v", e, inside)
			}
		}
		inside = nil
		if e.what == "enter" {
			inside = &e
		}
	}
	data, err := os.ReadFile(path + ".count")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(string(data))
	if err != nil || n < left || n > entered {
		t.Errorf("%d entered, %d left, and the count is %q", entered, left, data)
	}
	t.Logf("%d entered, %d left, %d counted; %d processes killed", entered, left, n, len(killed))
}

// Processes that make the same new file at once all get it.
func TestProcessesOpenANewFile(t *testing.T) {
	for range 3 {
		path := testFile(t)
		var processes []*process
		for range 8 {
			processes = append(processes, start(t, "open", path))
		}
		for _, p := range processes {
			p.end(t)
		}
		s := openTest(t, path, nil, hostClock)
		n := 0
		for e, err := range s.List(t.Context(), dibs.Query{}) {
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(e.Key.Name, "child ") {
				t.Errorf("the file has %+v", e)
			}
			n++
		}
		if n != len(processes) {
			t.Errorf("the file has the claims of %d processes, not %d", n, len(processes))
		}
	}
}

// copyBinary puts this test binary where every user can run it.
func copyBinary(t *testing.T, folder string) string {
	t.Helper()
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "child")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
