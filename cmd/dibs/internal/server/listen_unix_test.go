//go:build unix

package server

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
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

// TestASocketNeedsAFolder: the error names the folder that is missing.
func TestASocketNeedsAFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dibs")
	if _, err := listenUnix(filepath.Join(dir, "dibs.sock"), 0o600); err == nil || !strings.Contains(err.Error(), "there is no folder "+dir+": make it") {
		t.Errorf("the error is %v", err)
	}
}
