//go:build unix

package process

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signal is a signal as an error: the cause of a wait that ended.
type Signal syscall.Signal //nolint:errname // it is a signal first

func (s Signal) Error() string { return unix.SignalName(syscall.Signal(s)) }

// Code is the exit code of a program that the signal killed.
func (s Signal) Code() int { return 128 + int(s) }

// Signals receives the signals that a program passes on to its command.
type Signals chan os.Signal

// Listen starts to receive SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2.
func Listen() Signals {
	s := make(Signals, 16)
	signal.Notify(s, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	return s
}

// Until calls ended with the first signal that asks the program to end. SIGUSR1 and SIGUSR2
// are dropped, because only a command has a use for them. After stop has returned, ended is
// not called.
func (s Signals) Until(ended func(Signal)) (stop func()) {
	over := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		for {
			select {
			case <-over:
				return
			case received := <-s:
				if received != syscall.SIGUSR1 && received != syscall.SIGUSR2 {
					ended(Signal(received.(syscall.Signal)))
					return
				}
			}
		}
	})
	return func() {
		close(over)
		waiting.Wait()
	}
}

// Stop stops receiving. Signals have their default effect again.
func (s Signals) Stop() { signal.Stop(s) }
