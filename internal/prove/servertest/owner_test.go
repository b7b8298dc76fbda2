//go:build unix

package servertest

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// withoutReuse lets a listener take a port only if it is free.
func withoutReuse(_, _ string, c syscall.RawConn) error {
	var err error
	if failed := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)
	}); failed != nil {
		return failed
	}
	return err
}

func TestPort(t *testing.T) {
	t.Parallel()
	ports := map[int]bool{}
	for range 200 {
		p, err := reservePort()
		testkit.Must(t, err)
		defer p.release()
		if ports[p.number] {
			t.Fatalf("port %d is kept twice", p.number)
		}
		ports[p.number] = true
	}
	p, err := reservePort()
	testkit.Must(t, err)
	defer p.release()
	for range 2 { // again after the first is down
		if conn, err := net.Dial("tcp", p.addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			if err == nil {
				conn.Close()
			}
			t.Fatalf("dialling a port without a server: %v", err)
		}
		l, err := net.Listen("tcp", p.addr())
		if err != nil {
			t.Fatalf("a server cannot have its port: %v", err)
		}
		if conn, err := net.Dial("tcp", p.addr()); err != nil {
			t.Errorf("dialling the server: %v", err)
		} else {
			conn.Close()
		}
		syscall.ForkLock.RLock() // no process that is being started has a copy
		l.Close()
		syscall.ForkLock.RUnlock()
	}
}

func TestWireToNowhere(t *testing.T) {
	// The reset may come before the dialling is done.
	conn, err := net.Dial("tcp", NewWire(t, Addr(t)).Addr())
	if err == nil {
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v; want a reset", err)
	}
}

// What is lost on the way to Redis was carried out, in a pipeline too.
func TestWireLosesWhatRedisDid(t *testing.T) {
	t.Parallel()
	s := Redis(t, nil)
	w := NewWire(t, s.Addr())
	c, err := dialRedis(w.Addr(), nil, "", "")
	testkit.Must(t, err)
	defer c.Close()
	lost := w.LoseReplyTo("the key")
	var pipeline []byte
	for range 100 {
		pipeline = appendRequest(pipeline, []any{"INCR", "before"})
	}
	pipeline = appendRequest(pipeline, []any{"INCR", "the key"})
	if _, err := c.conn.Write(pipeline); err != nil {
		t.Fatal(err)
	}
	<-lost
	if got := s.Must("GET", "the key"); got != "1" {
		t.Errorf("the key is %v; want 1", got)
	}
	if _, err := c.Do("PING"); err == nil {
		t.Error("the connection was not reset")
	}
}

// sleeper starts a process that does nothing.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd
}

func TestWatch(t *testing.T) {
	t.Parallel()
	first, second := sleeper(t), sleeper(t)
	w, err := watchOver([]int{first.Process.Pid, second.Process.Pid})
	testkit.Must(t, err)
	w.end()
	if ended(first.Process.Pid) || ended(second.Process.Pid) {
		t.Error("the end of a watch ended what it was over")
	}
	if w, err = watchOver([]int{first.Process.Pid, second.Process.Pid}); err != nil {
		t.Fatal(err)
	}
	w.pipe.Close() // as our end does
	for _, cmd := range []*exec.Cmd{first, second} {
		if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Errorf("ended by %v", err)
		}
	}
	if err := w.shell.Wait(); err != nil {
		t.Errorf("the watch: %v", err)
	}
	(*watch)(nil).end() // none does nothing
}

// What a killed process left is removed, what a living one has is not, nor is
// what is just being made.
func TestSweep(t *testing.T) {
	t.Setenv("TMPDIR", "/tmp") // and not one that is too long
	alive, err := newFolder(nil)
	testkit.Must(t, err)
	root := t.TempDir()
	moved := filepath.Join(root, filepath.Base(alive.path))
	testkit.Must(t, os.Rename(alive.path, moved))
	alive.path = moved
	left := filepath.Join(root, folderPrefix+"left")
	fresh := filepath.Join(root, folderPrefix+"fresh")
	other := filepath.Join(root, "other")
	for _, dir := range []string{left, fresh, other} {
		testkit.Must(t, os.Mkdir(dir, 0o700))
	}
	for _, dir := range []string{left, other} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600))
	}
	exists := func(dir string) bool {
		_, err := os.Stat(dir)
		return err == nil
	}
	sweep(root)
	for dir, want := range map[string]bool{alive.path: true, left: false, fresh: true, other: true} {
		if exists(dir) != want {
			t.Errorf("%s exists: %v; want %v", dir, exists(dir), want)
		}
	}
	if err := alive.remove(); err != nil || exists(alive.path) {
		t.Errorf("removing: %v", err)
	}
}

func TestScope(t *testing.T) {
	t.Parallel()
	scope := NewScope()
	s := Redis(scope, nil)
	w := NewWire(scope, s.Addr())
	if got, err := dialRedis(w.Addr(), nil, "", ""); err != nil {
		t.Errorf("dialling %v: %v", got, err)
	}
	var order []int
	scope.Cleanup(func() { order = append(order, 1) })
	scope.Cleanup(func() { order = append(order, 2) })
	scope.Close()
	if want := []int{2, 1}; !slices.Equal(order, want) {
		t.Errorf("closed in the order %v; want %v", order, want)
	}
	if s.Running() {
		t.Error("the server runs on")
	}
	if _, err := os.Stat(s.folder.path); !os.IsNotExist(err) {
		t.Errorf("its folder: %v", err)
	}
	scope.Close() // once more does nothing
}

// TestEndsByItself: the log of a server that has ended by itself is shown, whatever the
// tests say; not that of one that was ended.
func TestEndsByItself(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*RedisServer){
		"by itself": func(s *RedisServer) {
			testkit.Check(t, send(s.proc.pid, syscall.SIGTERM))
			<-s.proc.exited
		},
		"killed":    (*RedisServer).Kill,
		"stopped":   (*RedisServer).Stop,
		"restarted": (*RedisServer).Restart,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said strings.Builder
			scope := &Scope{stderr: &said}
			end(Redis(scope, nil))
			scope.Close()
			logged := strings.Contains(said.String(), "has ended by itself, with exit status 0; its log:") && strings.Contains(said.String(), "Ready to accept connections")
			if logged != (name == "by itself") || !logged && said.Len() > 0 {
				t.Errorf("it said %q", said.String())
			}
		})
	}
}
