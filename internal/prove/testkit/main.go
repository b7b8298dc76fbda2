package testkit

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
)

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
