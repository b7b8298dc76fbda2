//go:build !linux

package serve

import "net"

// hungUp reports false, because the system cannot say. The caller's timeout_ms is left, and what
// net/http has read.
func hungUp(net.Conn) bool { return false }
