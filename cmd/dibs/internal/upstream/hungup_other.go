//go:build !unix

package upstream

import "net"

// hungUp cannot tell here; see hungup_unix.go.
func hungUp(net.Conn) bool { return false }
