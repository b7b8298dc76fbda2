//go:build unix

package command

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/dibs-go/dibs/internal/testkit"
)

// TestASocketIsRemovedOnce: a server that ends removes its own socket, and not that of the server
// that came after it.
func TestASocketIsRemovedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := listenUnix(path, 0o600)
	testkit.Must(t, err)
	testkit.Must(t, first.Close())
	next, err := listenUnix(path, 0o600)
	testkit.Must(t, err)
	defer next.Close()
	_ = first.Close() // again
	conn, err := net.Dial("unix", path)
	testkit.Must(t, err)
	conn.Close()
}
