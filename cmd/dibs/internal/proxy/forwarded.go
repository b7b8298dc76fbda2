package proxy

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// trustSockets is the element of Policy.TrustedProxies for the peers of a Unix socket.
const trustSockets = "unix"

// checkTrusted refuses what is not an element of Policy.TrustedProxies.
func checkTrusted(s string) error {
	if s == trustSockets {
		return nil
	}
	if ip, err := netip.ParseAddr(s); err == nil {
		if ip.Zone() != "" {
			return fmt.Errorf("%q has a zone; write %s", s, ip.WithZone(""))
		}
		if ip.Is4In6() {
			return fmt.Errorf("%q is an IPv4 address; write %s", s, ip.Unmap())
		}
		return nil
	}
	network, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return fmt.Errorf("%q is neither an IP address nor a network, such as 10.0.0.0/8", s)
	case network.Addr().Is4In6():
		return fmt.Errorf("%q: IPv4 addresses are compared as such; write %s/%d", s, network.Masked().Addr().Unmap(), max(0, network.Bits()-96))
	case network != network.Masked():
		return fmt.Errorf("%q has bits after its prefix; write %s", s, network.Masked())
	}
	return nil
}

// networks returns the networks of elements that passed checkTrusted.
func networks(elements []string) (all []netip.Prefix) {
	for _, s := range elements {
		if ip, err := netip.ParseAddr(s); err == nil {
			all = append(all, netip.PrefixFrom(ip, ip.BitLen()))
		} else if network, err := netip.ParsePrefix(s); err == nil {
			all = append(all, network)
		}
	}
	return all
}

// setForwarded tells the origin the client's address, host and protocol. What a trusted peer says of
// them stays, and its address is added. What another peer says is removed, because that is a client,
// which may say anything. The peer of a Unix socket has no address.
func (f *forwarder) setForwarded(h http.Header, r *http.Request) {
	peer, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		peer = r.RemoteAddr
	}
	addr, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	onSocket := addr != nil && addr.Network() == "unix"
	if onSocket && !f.trustsSockets || !onSocket && !f.trusts(peer) {
		dropForwarded(h)
	}
	if !onSocket {
		h.Set("X-Forwarded-For", strings.Join(append(slices.Clone(h["X-Forwarded-For"]), peer), ", "))
	}
	h.Set("X-Forwarded-Host", cmp.Or(h.Get("X-Forwarded-Host"), r.Host))
	proto := "http"
	if r.TLS != nil {
		proto = "https"
	}
	h.Set("X-Forwarded-Proto", cmp.Or(h.Get("X-Forwarded-Proto"), proto))
}

// trusts reports whether the peer is one of the trusted proxies.
func (f *forwarder) trusts(peer string) bool {
	ip, err := netip.ParseAddr(peer)
	ip = ip.Unmap().WithZone("")
	return err == nil && slices.ContainsFunc(f.trusted, func(network netip.Prefix) bool { return network.Contains(ip) })
}

// dropForwarded removes the forwarded fields of a gateway, in every spelling.
func dropForwarded(h http.Header) {
	for name := range h {
		switch canonical := http.CanonicalHeaderKey(strings.Map(dash, name)); {
		case canonical == "Forwarded", canonical == "X-Real-Ip", strings.HasPrefix(canonical, "X-Forwarded-"):
			delete(h, name)
		}
	}
}
