// Command dibs-torture breaks a store on purpose and checks what comes of it. It is a
// program of its own, because a production binary contains nothing that breaks a store.
// `dibs torture` runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/dibs-go/dibs/proof/torture"
)

func main() {
	torture.Child(torture.OpenStore) // does not return in a worker process
	// The first signal ends the run in order; the second one ends the process at once.
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals)
		cancel(&interruptedError{s.(syscall.Signal)})
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

// interruptedError is the cause with which a run ends after a signal.
type interruptedError struct{ signal syscall.Signal }

func (e *interruptedError) Error() string { return "ended by a signal: " + e.signal.String() }

// code is the exit code that a shell reports for the signal.
func (e *interruptedError) code() int { return 128 + int(e.signal) }

// version describes this build.
func version() string {
	release := "devel"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		release = info.Main.Version
	}
	return fmt.Sprintf("dibs-torture %s", release)
}
