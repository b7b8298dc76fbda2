//go:build unix

package servertest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// waitLimit bounds every wait, such as a start, an answer or a stop. It is long because the
	// machine may be busy; a test that passes never reaches it.
	waitLimit = 60 * time.Second
	// firstLook and lastLook are the first and the longest pause of polling.
	firstLook = time.Millisecond
	lastLook  = 50 * time.Millisecond
)

// server is the common part of all servers: start, stop and log.
type server struct {
	owner   Owner
	name    string // for messages
	port    *port
	as      *account
	folder  *folder
	command command
	// ready returns nil when the server answers.
	ready func() error
	// wipe restores the data folder of the first start.
	wipe func() error
	// asks is the signal for an orderly shutdown. 0: SIGTERM.
	asks syscall.Signal

	mu     sync.Mutex
	proc   *process // the last process
	paused bool
	down   bool // it was ended by Kill or Stop
}

// prepare reserves the server's port and makes its folder. kind is for messages. users are the
// accounts that may run it; without one the user of the test does.
func (s *server) prepare(owner Owner, kind string, users ...string) (err error) {
	s.owner = owner
	if len(users) > 0 {
		if s.as, err = unprivileged(users...); err != nil {
			return err
		}
	}
	if s.port, err = reservePort(); err != nil {
		return err
	}
	owner.Cleanup(s.port.release)
	s.name = kind + " at " + s.port.addr()
	if s.folder, err = newFolder(s.as); err != nil {
		return err
	}
	s.command = command{dir: s.folder.path, log: s.folder.join("log"), as: s.as}
	owner.Cleanup(s.end)
	return nil
}

// started returns a server, and ends the test if it could not be started.
func started[S any](owner Owner, s S, err error) S {
	owner.Helper()
	if err != nil {
		owner.Fatalf("%v", err)
	}
	return s
}

// options returns the options, or the defaults for nil.
func options[O any](o *O) *O {
	if o == nil {
		o = new(O)
	}
	return o
}

// accepts returns nil when the server accepts connections.
func (s *server) accepts() error {
	conn, err := net.DialTimeout("tcp", s.Addr(), waitLimit)
	if err != nil {
		return err
	}
	return conn.Close()
}

// write writes files into the folder.
func (s *server) write(files map[string]string) error {
	for name, text := range files {
		if err := s.as.write(s.folder.join(name), text); err != nil {
			return err
		}
	}
	return nil
}

// Addr returns the server's address, "127.0.0.1:4321".
func (s *server) Addr() string { return s.port.addr() }

// rows returns what a statement returned, and ends the test after an error.
func (s *server) rows(sql string, do func(sql string) ([][]string, error)) [][]string {
	s.owner.Helper()
	rows, err := do(sql)
	if err != nil {
		s.owner.Fatalf("%s at %s: %v", sql, s.name, err)
	}
	return rows
}

// beginEmpty makes the data folder and starts the server for the first time.
func (s *server) beginEmpty() error {
	if err := s.wipe(); err != nil {
		return err
	}
	return s.begin()
}

// begin starts the server for the first time.
func (s *server) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run()
}

// run starts the process and waits until the server answers. It and the unexported
// methods below need mu.
func (s *server) run() error {
	proc, err := start(s.command)
	if err != nil {
		return fmt.Errorf("starting %s: %w", s.name, err)
	}
	s.proc, s.paused, s.down = proc, false, false
	err = await(func() error {
		if proc.hasExited() {
			return permanentError{errors.New("exited: " + proc.outcome)}
		}
		return s.ready()
	})
	if err != nil {
		return fmt.Errorf("starting %s: %w\n%s", s.name, err, s.tail(10))
	}
	return nil
}

// Pause stops all processes of the server (SIGSTOP). Connections stay and new ones are
// accepted, but the server does not answer. Pause returns when the processes have
// stopped.
func (s *server) Pause() {
	s.owner.Helper()
	s.do("pausing", func() error {
		s.paused = true
		return s.proc.pause()
	})
}

// Continue continues a paused server (SIGCONT).
func (s *server) Continue() {
	s.owner.Helper()
	s.do("continuing", func() error {
		s.paused = false
		return s.proc.resume()
	})
}

// Kill ends all processes of the server at once (SIGKILL), also paused ones, as a crash
// does. Data that was not written is lost.
func (s *server) Kill() {
	s.owner.Helper()
	s.do("killing", func() error {
		s.down = true
		return s.proc.kill()
	})
}

// Stop shuts the server down, even with clients connected, and waits until its data is on
// disk and it has ended. A paused server is continued first.
func (s *server) Stop() {
	s.owner.Helper()
	s.do("stopping", func() error {
		s.down = true
		return s.stop()
	})
}

// Restart starts the server again, at its address and with its data on disk. A running
// server is stopped first.
func (s *server) Restart() {
	s.owner.Helper()
	s.do("restarting", func() error {
		if err := s.stop(); err != nil {
			return err
		}
		return s.run()
	})
}

// Running reports whether the server's process is alive, even if it is paused.
func (s *server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.proc.hasExited()
}

// serving reports whether the server can answer.
func (s *server) serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.proc.hasExited() && !s.paused
}

// Log returns the output of the server over all its starts.
func (s *server) Log() string {
	log, err := os.ReadFile(s.command.log)
	if err != nil {
		return err.Error()
	}
	return string(log)
}

// stop shuts the process down.
func (s *server) stop() error {
	deadline := time.After(waitLimit)
	for {
		// Repeat the signal, because Redis ignores it while it writes its first
		// append-only file.
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
			return errors.New("does not shut down")
		}
	}
}

// end ends the server, and logs its output if the test has failed or the server has ended
// by itself.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.proc != nil && s.proc.hasExited() && !s.down:
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

// do changes the server, and ends the test after an error.
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

// permanentError is an error that ends a wait.
type permanentError struct{ error }

func (o permanentError) Unwrap() error { return o.error }

// mustAwait is await, and ends the test if it is in vain.
func mustAwait(owner Owner, what string, f func() error) {
	owner.Helper()
	if err := await(f); err != nil {
		owner.Fatalf("%s: %v", what, err)
	}
}

// awaitStandby returns when a standby has what its primary had at the call, by follows.
func (s *server) awaitStandby(position func() (int64, error), follows func(wrote int64) error) {
	s.owner.Helper()
	wrote, err := position()
	if err != nil {
		s.owner.Fatalf("%s: %v", s.name, err)
	}
	mustAwait(s.owner, s.name, func() error { return follows(wrote) })
}

// await calls f until it returns nil. It gives up after a permanentError, or after
// waitLimit.
func await(f func() error) error {
	deadline := time.Now().Add(waitLimit)
	for pause := firstLook; ; pause = min(pause*5/4, lastLook) {
		err := f()
		if err == nil {
			return nil
		}
		if o, ok := errors.AsType[permanentError](err); ok {
			return o.error
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %w", waitLimit, err)
		}
		<-time.After(pause)
	}
}

// A port is a loopback port that is reserved for one server, even while the server is
// down. A bound socket that never listens reserves it: the kernel gives the port to no
// other process and refuses connections to it. A server that sets SO_REUSEADDR can still
// bind it; all servers here do.
type port struct {
	number int
	fd     int
}

// reservePort reserves a free port of 127.0.0.1.
func reservePort() (*port, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	p := &port{fd: fd}
	if err := p.bind(); err != nil {
		p.release()
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	return p, nil
}

// bind binds the socket to a port that the kernel chooses. SO_REUSEADDR is set after
// that, because otherwise the kernel might choose a reserved port.
func (p *port) bind() error {
	if err := syscall.Bind(p.fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	name, err := syscall.Getsockname(p.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	p.number = name.(*syscall.SockaddrInet4).Port
	return os.NewSyscallError("setsockopt", syscall.SetsockoptInt(p.fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
}

// addr returns the port's address, "127.0.0.1:4321".
func (p *port) addr() string { return net.JoinHostPort("127.0.0.1", p.String()) }

func (p *port) String() string { return strconv.Itoa(p.number) }

// Addr returns the address of a loopback port that is reserved for its owner. Connections
// are refused until a server of the owner binds it. Go's listeners can, like all that set
// SO_REUSEADDR.
func Addr(owner Owner) string {
	owner.Helper()
	p, err := reservePort()
	if err != nil {
		owner.Fatalf("%v", err)
	}
	owner.Cleanup(p.release)
	return p.addr()
}

// release gives the port back.
func (p *port) release() { syscall.Close(p.fd) }
