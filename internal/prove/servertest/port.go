//go:build unix

package servertest

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

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
