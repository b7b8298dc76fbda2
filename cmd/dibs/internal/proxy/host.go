package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// hostPattern matches the hosts that requests name. The zero pattern matches every host.
type hostPattern struct {
	text string
	name string // in lower case, without the dot that ends a full name
	port string // "" for any
	wild bool   // one or more labels stand before the name
}

const anyLabels = "*."

// parseHost reads a host, with a port or without: a name, an IP address, or *. before a name.
func parseHost(s string) (hostPattern, error) {
	if s == "" {
		return hostPattern{}, nil
	}
	h := hostPattern{text: s}
	h.name, h.port = splitHost(s)
	h.name, h.wild = strings.CutPrefix(h.name, anyLabels)
	_, wildIP := netip.ParseAddr(h.name)
	switch {
	case strings.Contains(s, "://"):
		_, rest, _ := strings.Cut(s, "://")
		rest, _, _ = strings.Cut(rest, "/")
		return h, fmt.Errorf("%q is a URL; write %s", s, rest)
	case !isHostname(h.name) || h.wild && wildIP == nil:
		return h, fmt.Errorf("%q is not a host; write a name in ASCII or an IP address, such as example.com, *.example.com or [::1], or leave it out for every host", s)
	case strings.HasSuffix(s, ":") || h.port != "" && !isPort(h.port):
		return h, fmt.Errorf("%q: ports are 1 to 65535; without one the host is for every port", s)
	}
	return h, nil
}

// UnmarshalText reads the pattern.
func (h *hostPattern) UnmarshalText(text []byte) (err error) {
	*h, err = parseHost(string(text))
	return err
}

// String returns the pattern as it is written.
func (h hostPattern) String() string { return h.text }

// match reports whether the Host of a request matches. A port that is the default of HTTP or HTTPS
// matches a Host without one, because clients leave it out.
func (h hostPattern) match(host string) bool {
	if h.text == "" {
		return true
	}
	name, port := splitHost(host)
	if h.port != "" && h.port != port && (port != "" || h.port != "80" && h.port != "443") {
		return false
	}
	if h.wild {
		rest, ok := strings.CutSuffix(name, "."+h.name)
		return ok && rest != ""
	}
	return name == h.name
}

// splitHost returns a host and its port as all servers read them: in lower case, without the dot that
// ends a full name, and without the brackets of an IP address.
func splitHost(host string) (name, port string) {
	name = strings.ToLower(host)
	if n, p, err := net.SplitHostPort(name); err == nil {
		name, port = n, p
	} else if n, ok := strings.CutPrefix(name, "["); ok {
		name = strings.TrimSuffix(n, "]")
	}
	if strings.Contains(name, ":") {
		if ip, err := netip.ParseAddr(name); err == nil {
			name = ip.String()
		}
	}
	return strings.TrimSuffix(name, "."), port
}
