package storetest

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// recorder is the testing.TB of one trial. It keeps what the trial reports
// instead of failing the test, so that the tests of this package can watch a broken
// store fail.
type recorder struct {
	testing.TB // for what is not reporting: Cleanup, Context, TempDir

	mu     sync.Mutex
	failed bool
	log    []string
}

func newRecorder(t testing.TB) *recorder { return &recorder{TB: t} }

// Failed reports whether the trial has failed so far.
func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log
}

// replay logs what the trial reported.
func (r *recorder) replay(t testing.TB) {
	t.Helper()
	for _, line := range r.lines() {
		t.Log(line)
	}
}

func (r *recorder) Helper() {}

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Log(args ...any)                 { r.add(fmt.Sprint(args...)) }
func (r *recorder) Logf(format string, args ...any) { r.add(fmt.Sprintf(format, args...)) }

func (r *recorder) Error(args ...any) {
	r.add(fmt.Sprint(args...))
	r.Fail()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.add(fmt.Sprintf(format, args...))
	r.Fail()
}

func (r *recorder) Fatal(args ...any) {
	r.add(fmt.Sprint(args...))
	r.FailNow()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.add(fmt.Sprintf(format, args...))
	r.FailNow()
}

// Skip and its kin fail: a trial that cannot be made is declared in Lacks.
func (r *recorder) Skip(args ...any)                 { r.Fatal("skipped: ", fmt.Sprint(args...)) }
func (r *recorder) Skipf(format string, args ...any) { r.Fatalf("skipped: "+format, args...) }
func (r *recorder) SkipNow()                         { r.Fatal("skipped") }

// maxLines bounds what one trial reports, because the first lines matter most.
const maxLines = 30

func (r *recorder) add(text string) {
	where := caller()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.log) < maxLines {
		r.log = append(r.log, where+text)
	}
}

// caller returns the place in a property (or in a store's own harness) that
// reports, as "file.go:12: ".
func caller() string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		switch name := filepath.Base(f.File); {
		case name == "recorder.go" || name == "trial.go" || name == "process.go":
		case strings.HasPrefix(f.Function, "runtime.") || f.File == "":
		default:
			return fmt.Sprintf("%s:%d: ", name, f.Line)
		}
		if !more {
			return ""
		}
	}
}
