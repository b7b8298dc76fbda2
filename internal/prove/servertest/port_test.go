//go:build unix

package servertest

import (
	"errors"
	"net"
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
