// Command dibs-prove breaks things on purpose and checks what they keep of their promises:
// conform checks implementations of idempotent HTTP, and torture breaks stores. It is a program
// of its own, because the product contains nothing that breaks a store.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/dibs-go/dibs/proof/torture"
)

// Exit codes, after sysexits.h.
const (
	codeOK       = 0
	codeFailed   = 1
	codeUsage    = 64
	codeUnusable = 69
)

const usage = `Breaks things on purpose, and checks what they keep of their promises.

Usage:
  dibs-prove conform --target URL   checks any implementation of idempotent HTTP
  dibs-prove torture --store URL    breaks a store on purpose; for test servers
  dibs-prove --version

"dibs-prove conform --help" and "dibs-prove torture --help" have the flags.
`

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

// run runs the program with the arguments after its name and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	switch name {
	case "conform":
		return runConform(ctx, args[1:], stdout, stderr, getenv)
	case "torture":
		return runTorture(ctx, args[1:], stdout, stderr, getenv)
	case "--version":
		fmt.Fprintln(stdout, "dibs-prove", release())
		return codeOK
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
		return codeOK
	case "":
		fmt.Fprint(stderr, usage)
	default:
		fmt.Fprintf(stderr, "dibs-prove: there is no command %q; the commands are conform and torture\n", name)
	}
	return codeUsage
}

// interruptedError is the cause with which a run ends after a signal.
type interruptedError struct{ signal syscall.Signal }

func (e *interruptedError) Error() string { return "ended by a signal: " + e.signal.String() }

// code is the exit code that a shell reports for the signal.
func (e *interruptedError) code() int { return 128 + int(e.signal) }

// release is the version of this build.
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
