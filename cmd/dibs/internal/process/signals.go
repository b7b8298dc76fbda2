package process

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signal is a signal as an error: what ended a wait.
type Signal syscall.Signal //nolint:errname // it is a signal in the first place

func (s Signal) Error() string { return unix.SignalName(syscall.Signal(s)) }

// Code is the exit code of a program that the signal ended.
func (s Signal) Code() int { return 128 + int(s) }

// Signals are those that a program passes on to its command.
type Signals struct {
	os   chan os.Signal
	c    chan Signal
	done chan struct{}
	all  sync.WaitGroup
}

// Listen begins to take signals: SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and
// SIGUSR2.
func Listen() *Signals {
	s := &Signals{os: make(chan os.Signal, 16), c: make(chan Signal), done: make(chan struct{})}
	signal.Notify(s.os, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	s.all.Go(func() {
		for {
			select {
			case <-s.done:
				return
			case received := <-s.os:
				select {
				case s.c <- Signal(received.(syscall.Signal)):
				case <-s.done:
					return
				}
			}
		}
	})
	return s
}

// C is where the signals arrive.
func (s *Signals) C() <-chan Signal { return s.c }

// Until calls ended with the first signal that asks the program to end; SIGUSR1
// and SIGUSR2 are for a command, and are dropped. When stop has returned, ended
// has been called or is not called any more.
func (s *Signals) Until(ended func(Signal)) (stop func()) {
	over := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		for {
			select {
			case <-over:
				return
			case received := <-s.c:
				if received != Signal(syscall.SIGUSR1) && received != Signal(syscall.SIGUSR2) {
					ended(received)
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

// Stop ends the listening: signals do again what they do by default.
func (s *Signals) Stop() {
	signal.Stop(s.os)
	close(s.done)
	s.all.Wait()
}
