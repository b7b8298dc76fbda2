// Package testkit has what the tests of all packages need, each thing once.
//
//	Limit       bounds every wait against hanging
//	Must        ends the test at an error
//	Check       fails the test at an error, and continues
//	Eventually  waits until a condition holds
//	Await       returns what comes next on a channel
//	ReadFile    returns what a file has
//	Listen      listens on a free port
//	Serve       serves connections
//	Request     returns a request for a client to send
//	Output      keeps what a process or a log says
//	Own         returns a name that no other test of this run has
//	Main        is the body of TestMain, in the tests and in their child processes
//	HTTP2, Deaf return clients that read slowly, or not
//	Child       returns a command that runs this test binary as a child process
//
// Package failpoint stops a child at a named point.
package testkit

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// Limit bounds every wait in a test: what has not happened after it will not happen. It does not
// measure speed, and no test asserts that something is faster.
const Limit = time.Minute

// Must ends the test if err is not nil. Otherwise it costs nothing, so that benchmarks can call it.
func Must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Check fails the test if err is not nil.
func Check(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Error(err)
	}
}

// Eventually waits until the condition holds. It ends the test after Limit.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(Limit)
	for pause := time.Millisecond; !holds(); pause = min(2*pause, 16*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain: %s", Limit, what)
		}
		time.Sleep(pause)
	}
}

// Await returns what comes next on the channel: the zero value if the channel is closed. It ends
// the test after Limit.
func Await[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(Limit):
		t.Fatalf("waited %v in vain: %s", Limit, what)
	}
	return v
}

// ReadFile returns what a file has. It ends the test if it cannot be read.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	Must(t, err)
	return text
}

var owned atomic.Int64

// Own returns a name that no other test of this run has: for a schema, a prefix or a key on a
// server that tests share.
func Own() string { return fmt.Sprintf("own%d", owned.Add(1)) }

// childVar has the name of what a child process does.
const childVar = "TESTKIT_CHILD"

// Children are what a test binary does as a child process, by name. Each gets the arguments of
// Child. The process exits with 1 if it returns an error, which goes to standard error.
type Children map[string]func(args []string) error

// Main runs the tests, calls the functions in end, and exits. In a process that Child started it
// runs that child instead. Eight tests are parallel, more on a machine with more processors,
// because most of them wait for servers.
func Main(m *testing.M, children Children, end ...func()) {
	if name := os.Getenv(childVar); name != "" {
		os.Exit(beChild(children, name))
	}
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	code := m.Run()
	for _, f := range end {
		f()
	}
	os.Exit(code)
}

func beChild(children Children, name string) (code int) {
	_ = os.Unsetenv(childVar) // what the child starts is no such child
	child := children[name]
	if child == nil {
		fmt.Fprintf(os.Stderr, "testkit: no child is named %q: give it to Main\n", name)
		return 2
	}
	if err := child(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Child returns a command that runs this test binary as the child with that name.
func Child(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVar+"="+name,
		"GORACE=atexit_sleep_ms=0") // the race detector makes every exit last a second
	return cmd
}
