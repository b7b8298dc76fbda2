package proxy

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/upstream"
	"github.com/dibs-go/dibs/idempotency"
)

// Most guarded requests are short, and all of them have been read when the
// forwarder sees them. Such a request is relayed: written out from what the
// client sent, without a second one being made of it for net/http, and sent in
// one exchange. What is long, has a trailer, or asks for more than an answer
// takes the general way, through httputil.ReverseProxy.

// maxRelayed is how long the body of a request may be that is relayed.
const maxRelayed = 32 << 10

// relays reports whether the guarded request is one to relay. Of HTTP/1, the
// server has checked every part that is written out; of HTTP/2, and of a target
// that names a host, it lets spaces through.
func (f *forwarder) relays(r *http.Request) bool {
	return f.transport.Exchanges() && r.ProtoMajor == 1 && strings.HasPrefix(r.RequestURI, "/") &&
		0 <= r.ContentLength && r.ContentLength <= maxRelayed && len(r.Trailer) == 0 &&
		len(r.Header["Upgrade"]) == 0 && len(r.Header["Expect"]) == 0
}

// relay sends the request to the origin and its answer back.
func (f *forwarder) relay(w http.ResponseWriter, r *http.Request, lease *dibs.Lease) {
	d := drafts.Get().(*draft)
	res, err := f.exchange(w, r, lease, d)
	d.free()
	if err != nil {
		f.fail(w, r, err)
		return
	}
	defer res.Body.Close()
	if err := f.answer(w, res); err != nil {
		f.errors.Print("the origin's answer broke off: ", err)
		if !idempotency.Fail(r.Context(), idempotency.BrokeOff) {
			panic(http.ErrAbortHandler)
		}
	}
}

func (f *forwarder) exchange(w http.ResponseWriter, r *http.Request, lease *dibs.Lease, d *draft) (*http.Response, error) {
	if err := f.write(d, r, lease); err != nil {
		return nil, &upstream.Error{Kind: upstream.Unreached, Err: err}
	}
	return f.transport.Exchange(r, d.message, func(status int, hints http.Header) {
		h := w.Header()
		before := maps.Clone(h)
		maps.Copy(h, hints)
		w.WriteHeader(status)
		clear(h)
		maps.Copy(h, before)
	})
}

// draft is the memory that a request is written into.
type draft struct {
	message []byte
	names   []string
}

var drafts = sync.Pool{New: func() any { return new(draft) }}

func (d *draft) free() {
	clear(d.names)
	d.names = d.names[:0]
	if cap(d.message) <= 2*maxRelayed {
		drafts.Put(d)
	}
}

// write writes the request as the origin gets it.
func (f *forwarder) write(d *draft, r *http.Request, lease *dibs.Lease) error {
	prefix, target := f.transport.Target(r)
	b := d.message[:0]
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, prefix...)
	b = append(b, target...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = appendField(b, "Host", f.transport.Host(r))
	b = appendField(b, fenceHeader, strconv.FormatUint(lease.Fence(), 10))
	if r.ContentLength > 0 || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch {
		b = appendField(b, "Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
	for name := range r.Header {
		d.names = append(d.names, name)
	}
	slices.Sort(d.names)
	var said []string
	if f.forwarded {
		said = forwardedNames
		for _, field := range forwardedFields(r) {
			b = appendField(b, field.name, field.value)
		}
	}
	connection := r.Header["Connection"]
	for _, name := range d.names {
		switch {
		case slices.Contains(said, name):
			continue
		case slices.Contains(endToEnd, name):
		case name == "Content-Length", slices.Contains(ours, name), isHop(name, connection):
			continue
		}
		for _, value := range r.Header[name] {
			b = appendField(b, name, value)
		}
	}
	if hasToken(r.Header["Te"], "trailers") {
		b = appendField(b, "Te", "trailers")
	}
	b = append(b, "\r\n"...)
	head := len(b)
	b = slices.Grow(b, int(r.ContentLength))[:head+int(r.ContentLength)]
	d.message = b
	if r.ContentLength == 0 {
		return nil
	}
	_, err := io.ReadFull(r.Body, b[head:])
	return err
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// answer writes the origin's answer to w. It returns an error when that was not
// whole.
func (f *forwarder) answer(w http.ResponseWriter, res *http.Response) error {
	h := w.Header()
	connection := res.Header["Connection"]
	for name, values := range res.Header {
		if name != replayedHeader && !isHop(name, connection) {
			add(h, name, values)
		}
	}
	announced := len(res.Trailer)
	for name := range res.Trailer {
		h.Add("Trailer", name)
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // net/http would guess one
	}
	w.WriteHeader(res.StatusCode)
	if err := copyAnswer(w, res); err != nil {
		return err
	}
	prefix := ""
	if len(res.Trailer) != announced {
		prefix = http.TrailerPrefix
	}
	for name, values := range res.Trailer {
		add(h, prefix+name, values)
	}
	return nil
}

// add adds values that nobody else changes.
func add(h http.Header, name string, values []string) {
	if before := h[name]; len(before) > 0 {
		values = append(before, values...)
	}
	h[name] = values
}

// copyAnswer copies the body, piece by piece if the answer streams.
func copyAnswer(w http.ResponseWriter, res *http.Response) error {
	flush := func() error { return nil }
	if streams(res.Header) && (res.ContentLength < 0 || media(res.Header) == "text/event-stream") {
		flush = http.NewResponseController(w).Flush
	}
	buf := buffers.Get()
	defer buffers.Put(buf)
	for {
		if err := flush(); err != nil {
			return err
		}
		n, err := res.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return flush()
		}
		if err != nil {
			return err
		}
	}
}

// isHop reports whether a field is between two neighbours only (RFC 9110,
// 7.6.1). connection is the message's Connection field.
func isHop(name string, connection []string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return len(connection) > 0 && hasToken(connection, name)
}

// hasToken reports whether a list has the token, in any case.
func hasToken(lines []string, token string) bool {
	for _, line := range lines {
		for element := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.Trim(element, " \t"), token) {
				return true
			}
		}
	}
	return false
}
