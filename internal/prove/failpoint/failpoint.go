// Package failpoint stops a child process at a named point, so that a test can kill it
// exactly there, without guessing times.
//
// The child is usually the test binary itself. It calls Reach where it may be killed:
//
//	failpoint.Reach("before COMMIT")
//	err := tx.Commit(ctx)
//	failpoint.Reach("after COMMIT")
//
// The parent starts it with the name of one point, and kills it there:
//
//	child := failpoint.Start(t, "before COMMIT", testkit.Child("commit"))
//	child.Await()
//	child.Kill()
package failpoint

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// point is the variable with the name of a child's point. The child reports the point on
// descriptor 3.
const (
	point = "DIBS_FAILPOINT"
	pipe  = 3
)

// Reach does nothing, except in a child that was started with this point. There it
// reports to the parent and never returns. The child's other goroutines go on.
func Reach(name string) {
	if os.Getenv(point) != name || name == "" {
		return
	}
	report()
	for {
		time.Sleep(time.Hour) // an empty select could be reported as a deadlock
	}
}

// report reports once, from any number of goroutines.
var report = sync.OnceFunc(func() {
	if _, err := fmt.Fprintln(os.NewFile(pipe, "failpoint"), "reached"); err != nil {
		fmt.Fprintln(os.Stderr, "failpoint: cannot report to the parent:", err)
		os.Exit(2)
	}
})
