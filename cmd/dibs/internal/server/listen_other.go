//go:build !unix

package server

import (
	"io/fs"
	"net"
)

// listenUnix listens on a Unix socket. This system has no modes.
func listenUnix(path string, _ fs.FileMode) (net.Listener, error) { return net.Listen("unix", path) }
