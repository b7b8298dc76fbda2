//go:build unix

package servertest

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// Owner owns a server, which ends with it. A *testing.T, a *testing.B and a *Scope are
// owners.
type Owner interface {
	Helper()
	Name() string
	// Failed reports whether to print the servers' logs.
	Failed() bool
	Logf(format string, args ...any)
	// Fatalf does not return.
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// A Scope owns servers that no test owns: servers that the tests of a binary share, and
// servers of programs that measure. Its methods may be called from several goroutines.
type Scope struct {
	stderr io.Writer
	exit   func(code int)

	mu     sync.Mutex
	failed bool
	undo   []func()
}

var _ Owner = (*Scope)(nil)

// NewScope returns a Scope. Call its Close. Its messages go to standard error.
func NewScope() *Scope { return &Scope{stderr: os.Stderr, exit: os.Exit} }

// Close ends the scope's servers, the last one first.
func (s *Scope) Close() {
	for {
		s.mu.Lock()
		n := len(s.undo)
		if n == 0 {
			s.mu.Unlock()
			return
		}
		f := s.undo[n-1]
		s.undo = s.undo[:n-1]
		s.mu.Unlock()
		f()
	}
}

// Helper does nothing.
func (s *Scope) Helper() {}

// Name returns the program's name.
func (s *Scope) Name() string { return os.Args[0] }

// Failed reports whether Fatalf was called.
func (s *Scope) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Logf writes a line to standard error.
func (s *Scope) Logf(format string, args ...any) {
	fmt.Fprintf(s.stderr, format+"\n", args...)
}

// Fatalf writes a line to standard error, closes the scope and ends the program
// with exit code 1.
func (s *Scope) Fatalf(format string, args ...any) {
	s.Logf(format, args...)
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	s.Close()
	s.exit(1)
}

// Cleanup calls f when the scope is closed.
func (s *Scope) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undo = append(s.undo, f)
}
