//go:build unix

package upstream

import (
	"crypto/tls"
	"net"
	"syscall"
)

// hungUp reports whether the peer of an idle connection has closed it, or has sent bytes
// that no request asked for. It does not wait.
func hungUp(c net.Conn) bool {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	dead := true
	// Not raw.Read, because it would wait for net/http's reader.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		dead = err != syscall.EAGAIN && err != syscall.EINTR
	})
	return err != nil || dead
}
