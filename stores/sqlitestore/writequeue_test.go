package sqlitestore

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestWriteQueueIsClosedWhileItAsks closes a writeQueue that stands in the kernel's
// queue, as a Store does that waited for too long.
func TestWriteQueueIsClosedWhileItAsks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dibs.db")
	info, err := os.Stat(t.TempDir())
	testkit.Must(t, err)
	yes, no := func() bool { return true }, func() bool { return false }
	var holder, asker, next writeQueue
	for _, turn := range []*writeQueue{&holder, &asker, &next} {
		if turn.open(path, info); turn.unusable != nil {
			t.Fatal(turn.unusable)
		}
	}
	if !holder.enter(stalled, yes, no) {
		t.Fatal("the queue is empty, but the first one must wait")
	}
	if hasFileLocks && asker.enter(stalled, yes, no) {
		t.Fatal("two are inside")
	}
	testkit.Must(t, asker.close())
	testkit.Must(t, holder.close())
	// What asked in vain leaves the lock to others.
	deadline := time.Now().Add(testkit.Limit)
	if !next.enter(stalled, func() bool { return time.Now().After(deadline) }, no) {
		t.Error("the next one never gets in")
	}
	testkit.Check(t, next.close())
}

// TestWriteQueueAsksTheKernelOnce: a Store that gives up again and again has one goroutine in the
// kernel's queue, because each takes a thread, for as long as the program with the turn hangs.
func TestWriteQueueAsksTheKernelOnce(t *testing.T) {
	if !hasFileLocks {
		t.Skip("there are no such locks")
	}
	path := filepath.Join(t.TempDir(), "dibs.db")
	info, err := os.Stat(t.TempDir())
	testkit.Must(t, err)
	yes, no := func() bool { return true }, func() bool { return false }
	var holder, asker writeQueue
	for _, turn := range []*writeQueue{&holder, &asker} {
		if turn.open(path, info); turn.unusable != nil {
			t.Fatal(turn.unusable)
		}
		defer turn.close()
	}
	if !holder.enter(stalled, yes, no) {
		t.Fatal("the queue is empty, but the first one must wait")
	}
	before := runtime.NumGoroutine()
	for range 10 {
		if asker.enter(stalled, yes, no) {
			t.Fatal("two are inside")
		}
	}
	if more := runtime.NumGoroutine() - before; more > 1 {
		t.Errorf("%d goroutines stand in the kernel's queue", more)
	}
	holder.leave()
	deadline := time.Now().Add(testkit.Limit)
	if !asker.enter(stalled, func() bool { return time.Now().After(deadline) }, no) {
		t.Error("it never gets in")
	}
	// It is inside, unless the goroutine that asked before has just given the turn back.
	asker.leave()
	if !holder.enter(stalled, func() bool { return time.Now().After(deadline) }, no) {
		t.Error("the other one never gets in again")
	}
}
