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
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// Limit bounds every wait in a test: what has not happened after it will not happen. It is no
// measure of speed, and no test asserts that something is faster.
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
