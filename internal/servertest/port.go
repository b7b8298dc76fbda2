//go:build unix

package servertest

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

// A port is a loopback port that is kept for one server, also while the server
// is down. It is held by a socket that is bound to it and never listens: the
// kernel gives the port to nobody else, refuses connections to it, and yet lets
// a server bind it that sets SO_REUSEADDR, as all of ours do.
type port struct {
	number int
	fd     int
}

// reservePort keeps a free port of 127.0.0.1.
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
		return nil, fmt.Errorf("reserving a port: %w", err)
	}
	return p, nil
}

// bind binds the socket to a port of the kernel's choice. SO_REUSEADDR comes
// after it: set before, the port might be one that is kept in this very way.
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

// Addr returns the address of a loopback port that is kept for its owner: nobody else
// is given it, and connections to it are refused until a server of the owner's has it.
// Go's listeners can, as all that set SO_REUSEADDR.
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
