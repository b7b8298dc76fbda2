//go:build !unix

package upstream

import "net"

const tells = false

// hungUp cannot tell here; see hungup_unix.go.
func hungUp(net.Conn) bool { return false }
