package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// checkPage refuses what is not an element of CORS: a page's origin as browsers
// send it (RFC 6454, section 6.2).
func checkPage(s string) error {
	u, err := url.Parse(s)
	switch {
	case s == "*":
		return fmt.Errorf("%q: refusals are for pages that are named; write each page", s)
	case err != nil || u.Scheme == "" || u.Host == "" || u.Hostname() == "":
		return fmt.Errorf("%q is not a page's origin, such as https://shop.example", s)
	case slices.Contains([]string{"ws", "wss", "ftp", "file", "blob", "data"}, u.Scheme):
		return fmt.Errorf("%q: no page has an origin with %s; write https://%s", s, u.Scheme, u.Host)
	case strings.Contains(u.Host, "*"):
		return fmt.Errorf("%q: * stands for nothing here; write each page", s)
	case strings.ContainsFunc(s, func(c rune) bool { return c > '~' }):
		return fmt.Errorf("%q is not in ASCII; write the name as browsers send it, with xn-- labels", s)
	case !isHostname(u.Hostname()):
		return fmt.Errorf("%q: %q is neither an IP address nor the name of a host", s, u.Hostname())
	}
	sent := u.Scheme + "://" + pageHost(u)
	if text := u.Port(); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("%q: there is no port %s; ports are 1 to 65535", s, text)
		}
		if port != map[string]uint64{"http": 80, "https": 443}[u.Scheme] {
			sent += ":" + strconv.FormatUint(port, 10)
		}
	}
	if sent != s {
		return fmt.Errorf("%q is not what browsers send; write %s", s, sent)
	}
	return nil
}

// pageHost returns the host of a page's origin, without its port.
func pageHost(u *url.URL) string {
	host := u.Hostname()
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		return strings.TrimSuffix(net.JoinHostPort(ip.String(), ""), ":")
	}
	if u.Scheme == "http" || u.Scheme == "https" {
		return strings.ToLower(host)
	}
	return host
}
