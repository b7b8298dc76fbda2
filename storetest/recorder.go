package storetest

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/pace"
)

// recorder is the testing.TB of one trial. It keeps what the trial reports
// instead of failing the test, so that a trial can be made again, and so that
// the tests of this package can watch a broken store fail.
type recorder struct {
	testing.TB // for what is not reporting: Cleanup, Context, TempDir

	mu     sync.Mutex
	failed bool
	log    []string
	short  bool          // something in the trial is meant to run out soon
	late   bool          // the trial missed a turn that it needs
	stall  time.Duration // the longest time for which nothing happened
	calls  time.Duration // spent in the store's methods, in all
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
func (r *recorder) Skip(args ...any) { r.Fatal("skipped: ", fmt.Sprint(args...)) }
func (r *recorder) Skipf(format string, args ...any) {
	r.Fatal("skipped: ", fmt.Sprintf(format, args...))
}
func (r *recorder) SkipNow() { r.Fatal("skipped") }

// maxLines bounds what one trial reports; the first lines tell the most.
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

// watch measures, until it is stopped, how long the machine stands still. Virtual time
// never does.
func (r *recorder) watch(virtual bool) (stop func()) {
	if virtual {
		return func() {}
	}
	return pace.Watch(r.stood)
}

// stood notes that nothing happened for d.
func (r *recorder) stood(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stall = max(r.stall, d)
}

// called notes that a call took d. A slow call is as good an excuse as a
// machine that stands still, and so are many that are not quite as slow.
func (r *recorder) called(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stall = max(r.stall, d)
	r.calls += d
}

// hurried notes that something in the trial is meant to run out soon.
func (r *recorder) hurried() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.short = true
}

// missed notes that the trial missed a turn, so that what follows proves nothing.
func (r *recorder) missed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = true
}

// excused reports whether the machine was so slow that leases may have run out
// that were not meant to. In a heavy trial none is short.
func (r *recorder) excused(short time.Duration, heavy bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if heavy {
		return r.late
	}
	return r.late || r.stall > dibs.Turn/2 || r.calls > dibs.Turn/4 || r.short && (r.stall > short/4 || r.calls > short/2)
}

// slow reports whether the machine has stood still, so that a figure that is
// too high proves nothing.
func (r *recorder) slow(late time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stall > late
}

// pace says how slow the machine was.
func (r *recorder) pace() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("it stood still for up to %v, and the calls took %v",
		r.stall.Round(time.Millisecond), r.calls.Round(time.Millisecond))
}
