//go:build unix

package command

import (
	"net"
	"path/filepath"
	"testing"
)

// TestASocketIsRemovedOnce: a server that ends removes its own socket, and not that of the server
// that came after it.
func TestASocketIsRemovedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := listenUnix(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := listenUnix(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	_ = first.Close() // again
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
