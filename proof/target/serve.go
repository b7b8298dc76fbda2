//go:build unix

package target

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/servertest"
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

var _ fault.Server = (*server)(nil)

// Serve starts a dibs serve on a SQLite file. It has no memory of its own, so a kill loses
// nothing.
func Serve(owner servertest.Owner) *fault.Target {
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
	s := &server{owner: owner, program: filepath.Join(folder, "dibs"), addr: servertest.Addr(owner), store: "sqlite:" + filepath.Join(folder, "dibs.db")}
	build := exec.Command("go", "build", "-trimpath", "-o", s.program, "github.com/dibs-go/dibs/cmd/dibs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build does, so that it is compiled once
	if said, err := build.CombinedOutput(); err != nil {
		owner.Fatalf("building dibs: %v: %s", err, said)
	}
	if s.log, err = os.Create(filepath.Join(folder, "log")); err != nil {
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
	return &fault.Target{URL: "http://" + s.addr, Server: s, Durable: true}
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
