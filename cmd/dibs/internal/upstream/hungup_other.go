//go:build !unix

package upstream

import "net"

// hungUp reports false, because the system cannot say.
func hungUp(net.Conn) bool { return false }
