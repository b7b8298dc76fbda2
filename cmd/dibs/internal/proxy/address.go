package proxy

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
)

// CheckAddress refuses what no listener can listen on.
func CheckAddress(s string) error {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if !strings.HasPrefix(path, "/") {
			return fmt.Errorf("%q: the path of a socket must be absolute, as in unix:/run/dibs/proxy.sock", s)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	switch {
	case strings.Trim(s, "0123456789") == "":
		return fmt.Errorf("%q is a port alone; write :%s for all addresses of this host, or 127.0.0.1:%s", s, s, s)
	case err != nil || strings.Contains(s, "://"):
		return fmt.Errorf("%q is not HOST:PORT, such as 127.0.0.1:8080, [::1]:8080 or :8080, and not unix:PATH", s)
	case host != "" && !isHostname(host):
		return fmt.Errorf("%q: %q is neither an IP address nor the name of a host", s, host)
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return fmt.Errorf("%q: there is no port %q; write 1 to 65535, or 0 for a free one", s, port)
	}
	return nil
}

// isPort reports whether s is a number from 1 to 65535.
func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// isHostname reports whether s is an IP address, or a name as clients send it: labels of ASCII letters,
// digits, - and _. A name whose last label is a number is a wrong IP address.
func isHostname(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	s = strings.TrimSuffix(s, ".")
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		last = label
		wrong := func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
		}
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, wrong) {
			return false
		}
	}
	return len(s) <= 253 && strings.Trim(last, "0123456789") != ""
}

// address is where a listener listens, or where an origin is.
type address struct {
	host string // "" for all addresses of this host; unix:PATH for a Unix socket
	port int    // onSocket for a Unix socket
}

// onSocket stands for the port of a Unix socket.
const onSocket = -1

// socketOf returns the address of a Unix socket.
func socketOf(path string) address {
	return address{"unix:" + filepath.Clean("/"+path), onSocket}
}

// addressOf returns the address of a listener. The text passed CheckAddress.
func addressOf(s string) address {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		return socketOf(path)
	}
	host, text, _ := net.SplitHostPort(s)
	port, _ := net.LookupPort("tcp", text)
	return address{plainAddress(host), port}
}

// originOf returns the address of an upstream, which passed checkUpstream.
func originOf(s string) address {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		return socketOf(path)
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return address{}
	}
	port, _ := net.LookupPort("tcp", cmp.Or(u.Port(), map[string]string{"https": "443"}[u.Scheme], "80"))
	return address{cmp.Or(plainAddress(u.Hostname()), "localhost"), port} // a connection to all addresses goes to this host
}

// plainAddress returns a host in one spelling; "" for all addresses of this host.
func plainAddress(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip = ip.Unmap(); ip.IsUnspecified() {
			return ""
		}
		return ip.String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// reachedBy reports whether a connection to an address goes to a listener on a.
func (a address) reachedBy(to address) bool {
	if a.port != to.port || a.port == 0 {
		return false
	}
	ip, err := netip.ParseAddr(to.host)
	local := to.host == "localhost" || err == nil && ip.IsLoopback()
	switch a.host {
	case to.host:
		return true
	case "":
		return local
	case "localhost":
		return to.host == "127.0.0.1" || to.host == "::1"
	case "127.0.0.1", "::1":
		return to.host == "localhost"
	}
	return false
}

// excludes reports whether no process can listen on both addresses.
func (a address) excludes(b address) bool {
	return a.reachedBy(b) || b.reachedBy(a) || a.port == b.port && a.port != 0 && (a.host == "" || b.host == "")
}
