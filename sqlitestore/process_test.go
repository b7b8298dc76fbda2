package sqlitestore

import (
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

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/store"
)

// children are what this test binary does when it is started as another process
// with the variable childVar set. They end when their standard input does.
var children = map[string]func(path string, input io.Reader) error{
	"open":  childOpen,
	"calls": childCalls,
	"book":  childBook,
	"serve": childServe,
}

const (
	childVar = "SQLITESTORE_TEST_CHILD"
	fileVar  = "SQLITESTORE_TEST_FILE"
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
	s, err := Open(path, &Options{LockWait: testkit.Limit})
	if err != nil {
		return err
	}
	c := lock("child " + strconv.Itoa(os.Getpid()))
	answers := make([]store.Answer, 1)
	if err := s.Claim(context.Background(), []store.Claim{c}, answers); err != nil {
		return err
	}
	if answers[0].State != store.Granted {
		return fmt.Errorf("the claim was answered %+v", answers[0])
	}
	if _, err := io.Copy(io.Discard, input); err != nil {
		return err
	}
	return s.Close()
}

// Processes that make the same new file at once all get it.
func TestProcessesOpenANewFile(t *testing.T) { openANewFile(t, 3) }

// openANewFile lets several processes create a file.
func openANewFile(t *testing.T, n int) {
	t.Helper()
	path := testFile(t)
	var processes []*process
	for range n {
		processes = append(processes, start(t, "open", path))
	}
	for _, p := range processes {
		p.end(t)
	}
	s := openTest(t, path, nil, hostClock)
	claims := 0
	for e, err := range s.List(t.Context(), store.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(e.Key.Name, "child ") {
			t.Errorf("the file has %+v", e)
		}
		claims++
	}
	if claims != n {
		t.Errorf("the file has the claims of %d processes, not %d", claims, n)
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
