//go:build unix

package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// listenUnix listens on a Unix socket with that mode. A socket that a server left behind is
// replaced, and one that a server listens on is not.
func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is there and is not a socket", path)
		}
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
			return nil, fmt.Errorf("another process listens on %s", path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	// The socket is made under another name and gets its mode there, so that nobody can connect
	// before.
	folder, err := os.MkdirTemp(filepath.Dir(path), ".dibs-")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no folder %s: make it, or name another path", filepath.Dir(path))
	}
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	made := filepath.Join(folder, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(made, mode), os.Rename(made, path)); err != nil {
		l.Close()
		return nil, err
	}
	return &socket{UnixListener: l, path: path}, nil
}

// socket is a listener whose file is removed when it ends.
type socket struct {
	*net.UnixListener
	path string
	once sync.Once // of the removal
}

func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Close removes the file while the socket still listens, and once. Otherwise it could remove the
// file of the next server, which replaces one that nobody listens on.
func (s *socket) Close() (err error) {
	s.once.Do(func() { err = os.Remove(s.path) })
	return errors.Join(err, s.UnixListener.Close())
}
