//go:build unix

package servertest

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
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
			if err := send(s.proc.pid, syscall.SIGTERM); err != nil {
				t.Error(err)
			}
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
			told := strings.Contains(said.String(), "has ended by itself, with exit status 0; its log:") && strings.Contains(said.String(), "Ready to accept connections")
			if told != (name == "by itself") || !told && said.Len() > 0 {
				t.Errorf("it said %q", said.String())
			}
		})
	}
}

// failing is a scope that tells what it says and how it ends. Like Fatalf of a
// test, its Fatalf ends the goroutine.
func failing(t *testing.T, f func(*Scope)) string {
	t.Helper()
	var said strings.Builder
	code := -1
	scope := &Scope{stderr: &said, exit: func(c int) {
		code = c
		runtime.Goexit()
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(scope)
	}()
	<-done
	scope.Close()
	if code != 1 {
		t.Errorf("exit code %d; want 1", code)
	}
	return said.String()
}

func TestFailures(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		do   func(*Scope)
		want []string
	}{
		{"a configuration that is wrong", func(s *Scope) {
			Redis(s, &RedisOptions{Directives: []string{"no-such-directive 1"}})
		}, []string{"starting redis-server at 127.0.0.1:", "exited: exit status 1", "no-such-directive"}},
		{"a command that fails", func(s *Scope) {
			Redis(s, nil).Must("INCR")
		}, []string{"[INCR] at redis-server at 127.0.0.1:", "wrong number of arguments", "log of redis-server", "Ready to accept connections"}},
		{"a server that does not answer", func(s *Scope) {
			server := Redis(s, nil)
			server.Kill()
			server.Info("role")
		}, []string{"INFO at redis-server", "connection refused"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			said := failing(t, test.do)
			for _, want := range test.want {
				if !strings.Contains(said, want) {
					t.Errorf("does not say %q:\n%s", want, said)
				}
			}
		})
	}
}
