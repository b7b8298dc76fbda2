//go:build unix

package servertest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Dibs returns the path of the program dibs of this tree: bin/dibs, which it builds as make build
// does. If the program is up to date, that takes a third of a second.
var Dibs = sync.OnceValues(func() (string, error) {
	said, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/dibs-go/dibs").Output()
	if err != nil {
		return "", fmt.Errorf("looking for the tree of dibs: %w", err)
	}
	tree := strings.TrimSpace(string(said))
	program := filepath.Join(tree, "bin", "dibs")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(program+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // and so unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	return program, Build(program, filepath.Join(tree, "cmd", "dibs"))
})

// Build builds a program with the flags of make build, so that what it imports is compiled once.
func Build(program, source string) error {
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", source, err, said)
	}
	return nil
}

// A DibsServer is a dibs serve of a test. Store is the URL of its store.
type DibsServer struct {
	server
	Store string
}

// DibsServe starts a dibs serve on a store that ends with its owner, and returns when it answers. "" is
// a SQLite file in its folder.
func DibsServe(owner Owner, store string) *DibsServer {
	owner.Helper()
	s := &DibsServer{}
	path, err := Dibs()
	if err == nil {
		err = s.prepare(owner, "dibs serve")
	}
	if err == nil {
		s.Store = cmp.Or(store, "sqlite:"+s.folder.join("dibs.db"))
		s.ready = s.answering("/healthz")
		s.command.path, s.command.args = path, []string{"dibs", "serve", "--store", s.Store, "--listen", s.Addr()}
		err = s.begin()
	}
	return started(owner, s, err)
}

// URL returns the server's address: "http://127.0.0.1:4321".
func (s *DibsServer) URL() string { return "http://" + s.Addr() }
