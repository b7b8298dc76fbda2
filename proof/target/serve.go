//go:build unix

package target

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

// server is a dibs serve in a process of its own.
type server struct {
	owner         servertest.Owner
	program, addr string
	store         string
	log           *os.File
	cmd           *exec.Cmd
}

var (
	_ fault.Server   = (*server)(nil)
	_ fault.Failover = (*servePair)(nil)
)

// Serve starts a dibs serve on a SQLite file. It has no memory of its own, so a kill loses
// nothing.
func Serve(owner servertest.Owner) *fault.Target {
	owner.Helper()
	s := serve(owner, 1)[0]
	return &fault.Target{URL: "http://" + s.addr, Server: s, Durable: true}
}

// ServePair starts two dibs serve on one SQLite file. The clients know both.
func ServePair(owner servertest.Owner) *fault.Target {
	owner.Helper()
	p := &servePair{both: serve(owner, 2)}
	return &fault.Target{URL: "http://" + p.both[0].addr + "," + p.both[1].addr, Failover: p, Synchronous: true}
}

// servePair is two servers of one store. A failover ends one of them for a moment.
type servePair struct {
	both []*server
	down *server
}

// Lag does nothing: what one server acknowledges, the other one knows.
func (p *servePair) Lag() error { return nil }

// Promote ends one of the servers.
func (p *servePair) Promote(bool) (addr string, err error) {
	i := rand.IntN(2)
	p.down = p.both[i]
	p.down.Kill()
	return p.both[1-i].addr, nil
}

// Rebuild starts it again, after clients had to go to the other one.
func (p *servePair) Rebuild() (behind int64, err error) {
	time.Sleep(silence)
	p.down.Restart()
	return 0, nil
}

// serve starts n servers on one SQLite file.
func serve(owner servertest.Owner, n int) (all []*server) {
	owner.Helper()
	folder, err := os.MkdirTemp("", "dibs-target-")
	if err != nil {
		owner.Fatalf("making a folder for a server: %v", err)
	}
	owner.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			owner.Logf("removing the folder of a server: %v", err)
		}
	})
	program, err := servertest.Dibs()
	if err != nil {
		owner.Fatalf("building dibs: %v", err)
	}
	for i := range n {
		s := &server{owner: owner, program: program, addr: servertest.Addr(owner), store: "sqlite:" + filepath.Join(folder, "dibs.db")}
		if s.log, err = os.Create(filepath.Join(folder, fmt.Sprint("log", i))); err != nil {
			owner.Fatalf("starting dibs serve: %v", err)
		}
		s.Restart()
		owner.Cleanup(func() {
			s.Continue()
			s.Kill()
			if owner.Failed() {
				text, err := os.ReadFile(s.log.Name())
				owner.Logf("dibs serve: %s, %v", text, err)
			}
			_ = s.log.Close() // it was only written by the server
		})
		all = append(all, s)
	}
	return all
}

// Kill ends the server at once.
func (s *server) Kill() {
	s.signal(syscall.SIGKILL)
	_ = s.cmd.Wait() // it says that it was killed
}

// Pause stops the server, and Continue lets it go on.
func (s *server) Pause()    { s.signal(syscall.SIGSTOP) }
func (s *server) Continue() { s.signal(syscall.SIGCONT) }

func (s *server) signal(sig syscall.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.owner.Logf("dibs serve does not get %v: %v", sig, err)
	}
}

// Restart starts the server at its address, and returns when it answers.
func (s *server) Restart() {
	s.cmd = exec.Command(s.program, "serve", "--store", s.store, "--listen", s.addr)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		s.owner.Fatalf("starting dibs serve: %v", err)
	}
	client := http.Client{Timeout: time.Second}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		resp, err := client.Get("http://" + s.addr + "/healthz")
		if err == nil {
			resp.Body.Close()
			return
		}
		if time.Now().After(deadline) {
			s.owner.Fatalf("dibs serve does not answer: %v", err)
		}
	}
}
