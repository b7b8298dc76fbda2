//go:build unix

package servertest

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
