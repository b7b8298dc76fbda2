package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/idempotency"
)

// Header fields between the proxy and the origin.
const (
	fenceHeader    = "Dibs-Fence"
	replayedHeader = "Idempotent-Replayed"
	controlHeader  = "Idempotency-Control"
)

// reserved are the fields that only the proxy may send to the origin or to the client.
var reserved = []string{fenceHeader, replayedHeader, controlHeader}

// fieldFault returns an error if a header can be no key, or no part of a scope. fault is what the guard
// says of it.
func fieldFault(name, fault string) error {
	switch {
	case strings.EqualFold(name, "Host"):
		return errors.New("the host belongs to every key already; remove header:Host")
	case slices.Contains(reserved, http.CanonicalHeaderKey(name)):
		return fmt.Errorf("%q is not seen in any request, because the proxy removes it; name another header", name)
	case fault != "":
		return fmt.Errorf("%q %s", name, fault)
	}
	return nil
}

// endToEnd are fields that reach the origin even if Connection names them: a client cannot hide
// the key from the guard or the origin, and fields of other proxies about the client stay.
var endToEnd = []string{"Idempotency-Key", "X-Idempotency-Key", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// endToEnd returns the fields that Connection cannot take away.
func (p *Policy) endToEnd() []string {
	all := slices.Concat(endToEnd, idempotency.WebhookHeaders(p.For))
	for part := range strings.SplitSeq(strings.Join(p.Key, "|"), "|") {
		if name, ok := strings.CutPrefix(part, "header:"); ok {
			all = append(all, http.CanonicalHeaderKey(name))
		}
	}
	return all
}

// reading is the handler in front of a guard. It makes the guard, net/http and the origin read the
// same request: it removes what only some of them would read.
type reading struct {
	next     http.Handler
	endToEnd []string
	dashed   []string // fields that the origin must not get under another spelling
}

// newReading returns the handler for a policy.
func newReading(p *Policy, next http.Handler) *reading {
	kept := p.endToEnd()
	return &reading{next, kept, slices.Concat(kept, overrideFields, []string{server.RequestIDHeader})}
}

func (d *reading) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.clean(r.Header)
	if len(r.Header["Upgrade"]) > 0 {
		oneOffer(r)
	}
	d.next.ServeHTTP(w, r)
}

// clean removes from a header the fields that the origin would not get because Connection names
// them, and the fields that a client may not send.
func (d *reading) clean(h http.Header) {
	for _, line := range h["Connection"] {
		for token := range strings.SplitSeq(line, ",") {
			name := http.CanonicalHeaderKey(strings.Trim(token, " \t"))
			if !slices.Contains(hopByHop, name) && !slices.Contains(d.endToEnd, name) {
				delete(h, name)
			}
		}
	}
	dropForged(h, d.dashed)
}

// hopByHop are fields that net/http still needs. ReverseProxy removes them.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// dropForged removes the reserved fields in every spelling, and misspelled fields that the origin
// takes for one of dashed. CGI, WSGI, Rack and PHP read "_" as "-", and some CGI servers also ".".
func dropForged(h http.Header, dashed []string) {
	for name := range h {
		canonical := http.CanonicalHeaderKey(strings.Map(dash, name))
		if slices.Contains(reserved, canonical) ||
			name != canonical && (slices.Contains(dashed, canonical) || strings.HasPrefix(canonical, "X-Forwarded-")) {
			delete(h, name)
		}
	}
}

// dash returns a character of a field's name as the most lenient origin reads it.
func dash(c rune) rune {
	if strings.ContainsRune("!#$%&'*+.^_`|~", c) {
		return '-'
	}
	return c
}

// oneOffer leaves one offer of the request's Upgrade, however many lines it has: the first that is
// neither HTTP nor TLS. Those two are offered to the proxy, which declines them. If the origin
// accepted one, later requests would bypass the guard.
func oneOffer(r *http.Request) {
	h := r.Header
	lines := h["Upgrade"]
	delete(h, "Upgrade")
	for offer := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		offer = strings.Trim(offer, " \t")
		protocol, _, _ := strings.Cut(offer, "/")
		switch strings.ToLower(protocol) {
		case "", "h2c", "http", "tls":
			continue
		}
		if r.ProtoAtLeast(1, 1) && server.IsVisible(offer) {
			h["Upgrade"] = []string{offer}
		}
		return
	}
}

// decline removes the offer of another protocol: a guarded request is served as it stands
// (RFC 9110, section 7.8).
func decline(h http.Header) { delete(h, "Upgrade") }

// cleanTrailer removes from a request's trailer the fields that a client may not send there: what
// belongs in the header, because an origin may take it for a header field, and the fields that
// frame a message, which net/http refuses to send.
func (f *forwarder) cleanTrailer(trailer http.Header) {
	for name := range trailer {
		canonical := http.CanonicalHeaderKey(strings.Map(dash, name))
		if slices.Contains(reserved, canonical) || slices.Contains(f.endToEnd, canonical) || slices.Contains(framing, canonical) ||
			slices.Contains(overrideFields, canonical) || canonical == server.RequestIDHeader || strings.HasPrefix(canonical, "X-Forwarded-") {
			delete(trailer, name)
		}
	}
}

// framing are the fields of a message's frame.
var framing = []string{"Content-Length", "Transfer-Encoding", "Trailer"}
