//go:build unix

package servertest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// patience bounds a start, a stop and everything else that is waited for:
	// long, since a machine may be busy, and never waited out by a test that
	// passes.
	patience = 60 * time.Second
	// firstLook and lastLook are the pauses between two looks at something that
	// cannot be waited for: short at first, since most of it takes a moment.
	firstLook = time.Millisecond
	lastLook  = 50 * time.Millisecond
)

// server is what the servers of all kinds have in common: a life.
type server struct {
	owner   Owner
	name    string // for messages
	folder  *folder
	command command
	// ready returns nil when the running server answers.
	ready func() error
	// wipe makes the data folder as it was before the first start.
	wipe func() error
	// asks is the signal that asks the server to end; 0: SIGTERM.
	asks syscall.Signal

	mu     sync.Mutex
	proc   *process // the last one started
	paused bool
	down   bool // it was ended by Kill or Stop
}

// begin starts the server for the first time.
func (s *server) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run()
}

// run starts the process and waits until the server answers. Called with mu
// held, like all below that are not exported.
func (s *server) run() error {
	proc, err := start(s.command)
	if err != nil {
		return fmt.Errorf("starting %s: %w", s.name, err)
	}
	s.proc, s.paused, s.down = proc, false, false
	err = await(func() error {
		if proc.gone() {
			return over{errors.New("exited: " + proc.outcome)}
		}
		return s.ready()
	})
	if err != nil {
		return fmt.Errorf("starting %s: %w\n%s", s.name, err, s.tail(10))
	}
	return nil
}

// Pause stops all processes of the server where they are (SIGSTOP): connections
// stay and are accepted, and nothing is answered. It returns when they have
// stopped.
func (s *server) Pause() {
	s.owner.Helper()
	s.do("pausing", func() error {
		s.paused = true
		return s.proc.pause()
	})
}

// Continue lets a paused server go on (SIGCONT).
func (s *server) Continue() {
	s.owner.Helper()
	s.do("continuing", func() error {
		s.paused = false
		return s.proc.resume()
	})
}

// Kill ends all processes of the server at once (SIGKILL), also paused ones, as
// a crash does: what they had not written is lost.
func (s *server) Kill() {
	s.owner.Helper()
	s.do("killing", func() error {
		s.down = true
		return s.proc.kill()
	})
}

// Stop asks the server to end, whoever is connected, and waits until it has,
// with what it keeps on disk written. A paused one is continued for it.
func (s *server) Stop() {
	s.owner.Helper()
	s.do("stopping", func() error {
		s.down = true
		return s.stop()
	})
}

// Restart starts the server again, at its address and with what it has on disk.
// One that runs is stopped first.
func (s *server) Restart() {
	s.owner.Helper()
	s.do("restarting", func() error {
		if err := s.stop(); err != nil {
			return err
		}
		return s.run()
	})
}

// RestartEmpty starts the server again, at its address and with nothing of what
// it knew: what happens to data when a disk is replaced.
func (s *server) RestartEmpty() {
	s.owner.Helper()
	s.do("restarting", func() error {
		if err := s.stop(); err != nil {
			return err
		}
		if err := s.wipe(); err != nil {
			return err
		}
		return s.run()
	})
}

// Running reports whether the server's process lives, be it paused.
func (s *server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.proc.gone()
}

// serving reports whether the server can be asked something.
func (s *server) serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.proc.gone() && !s.paused
}

// Log returns what the server has printed so far, over all its starts.
func (s *server) Log() string {
	log, err := os.ReadFile(s.command.log)
	if err != nil {
		return err.Error()
	}
	return string(log)
}

// stop ends the process in good order.
func (s *server) stop() error {
	deadline := time.After(patience)
	for {
		// More than once: Redis answers with a refusal while it is writing its
		// first append-only file, and forgets that it was asked.
		if err := s.proc.signal(cmp.Or(s.asks, syscall.SIGTERM)); err != nil {
			return err
		}
		if err := s.proc.resume(); err != nil {
			return err
		}
		select {
		case <-s.proc.exited:
			return nil
		case <-time.After(250 * time.Millisecond):
		case <-deadline:
			return errors.New("does not end when asked to")
		}
	}
}

// end ends the server for good, and shows its log where that may help: where a test has
// failed, or the server has ended by itself.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.proc != nil && s.proc.gone() && !s.down:
		s.owner.Logf("%s has ended by itself, with %s; its log:\n%s", s.name, s.proc.outcome, s.tail(60))
	case s.owner.Failed():
		s.owner.Logf("log of %s:\n%s", s.name, s.tail(60))
	}
	if s.proc != nil {
		if err := s.proc.kill(); err != nil {
			s.owner.Logf("ending %s: %v", s.name, err)
		}
	}
	if err := s.folder.remove(); err != nil {
		s.owner.Logf("removing what %s left: %v", s.name, err)
	}
}

// do does something to the server, or else ends the test.
func (s *server) do(what string, f func() error) {
	s.owner.Helper()
	s.mu.Lock()
	err := f()
	s.mu.Unlock()
	if err != nil {
		s.owner.Fatalf("%s %s: %v", what, s.name, err)
	}
}

// tail returns the last lines of the log.
func (s *server) tail(lines int) string {
	log := bytes.TrimSpace([]byte(s.Log()))
	at := len(log)
	for range lines {
		if at = bytes.LastIndexByte(log[:at], '\n'); at < 0 {
			break
		}
	}
	return string(log[at+1:])
}

// over is an error that waiting does not mend.
type over struct{ error }

func (o over) Unwrap() error { return o.error }

// await calls f until it returns nil, and gives up when it returns over or is
// out of patience.
func await(f func() error) error {
	deadline := time.Now().Add(patience)
	for pause := firstLook; ; pause = min(pause*5/4, lastLook) {
		err := f()
		if err == nil {
			return nil
		}
		if o, ok := errors.AsType[over](err); ok {
			return o.error
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %w", patience, err)
		}
		<-time.After(pause)
	}
}
