package sqlitestore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/failpoint"
)

// TestWriteQueueIsClosedWhileItAsks closes a writeQueue that stands in the kernel's
// queue, as a Store does that waited for too long.
func TestWriteQueueIsClosedWhileItAsks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dibs.db")
	info, err := os.Stat(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
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
	if err := asker.close(); err != nil {
		t.Fatal(err)
	}
	if err := holder.close(); err != nil {
		t.Fatal(err)
	}
	// What asked in vain leaves the lock to others.
	deadline := time.Now().Add(failpoint.Limit)
	if !next.enter(stalled, func() bool { return time.Now().After(deadline) }, no) {
		t.Error("the next one never gets in")
	}
	if err := next.close(); err != nil {
		t.Error(err)
	}
}
