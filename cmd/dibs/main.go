// Command dibs makes duplicate requests and jobs run once: a proxy that makes HTTP services
// idempotent, commands that run under a key, and commands for operators.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/dibs-go/dibs/cmd/dibs/internal/command"
)

func main() {
	command.Child() // does not return in a child process
	// The first signal ends the run in order. The second one kills the program.
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals)
		cancel(&command.InterruptedError{Signal: s})
	}()
	os.Exit(command.Run(ctx, os.Args[1:], command.Env{
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Getenv:  os.Getenv,
		Environ: os.Environ(),
	}))
}
