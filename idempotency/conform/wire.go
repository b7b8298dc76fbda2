package conform

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// request is one request, byte for byte.
type request struct {
	method  string
	target  string
	version string
	host    string
	fields  []string // whole lines without their end
	body    []byte
	chunked bool
	trailer []string
	length  int // what Content-Length says; -1: as long as the body is
}

// change changes a request before it is sent.
type change func(*request)

func withMethod(method string) change { return func(r *request) { r.method = method } }

// withPath adds to the target.
func withPath(rest string) change { return func(r *request) { r.target += rest } }

func withHost(host string) change { return func(r *request) { r.host = host } }

func withBody(text string) change { return func(r *request) { r.body = []byte(text) } }

// without takes a field out.
func without(name string) change {
	return func(r *request) {
		kept := r.fields[:0]
		for _, line := range r.fields {
			if n, _, _ := strings.Cut(line, ":"); !strings.EqualFold(n, name) {
				kept = append(kept, line)
			}
		}
		r.fields = kept
	}
}

// with adds a field.
func with(name, value string) change {
	return func(r *request) { r.fields = append(r.fields, name+": "+value) }
}

// replacing sets a field.
func replacing(name, value string) change {
	return func(r *request) {
		without(name)(r)
		with(name, value)(r)
	}
}

// withKey sets the key to this value of the field, byte for byte.
func withKey(value string) change { return replacing("Idempotency-Key", value) }

// withChunks sends the body in chunks of several sizes, with a trailer if there is one.
func withChunks(trailer ...string) change {
	return func(r *request) {
		r.chunked, r.trailer = true, trailer
		if len(trailer) > 0 {
			name, _, _ := strings.Cut(trailer[0], ":")
			with("Trailer", name)(r)
		}
	}
}

// head returns the request up to its body.
func (r *request) head() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s\r\nHost: %s\r\n", r.method, r.target, r.version, r.host)
	for _, line := range r.fields {
		b.WriteString(line + "\r\n")
	}
	switch {
	case r.chunked:
		b.WriteString("Transfer-Encoding: chunked\r\n")
	case r.length >= 0:
		b.WriteString("Content-Length: " + strconv.Itoa(r.length) + "\r\n")
	case len(r.body) > 0 || r.method == http.MethodPost || r.method == http.MethodPut || r.method == http.MethodPatch:
		b.WriteString("Content-Length: " + strconv.Itoa(len(r.body)) + "\r\n")
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// content is the body of an answer. There is nothing to close, because it is a part of the
// connection.
func (r *request) content() []byte {
	if !r.chunked {
		return r.body
	}
	var b bytes.Buffer
	for rest, n := r.body, 1; len(rest) > 0; n = n*3 + 1 {
		n = min(n, len(rest))
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, rest[:n])
		rest = rest[n:]
	}
	b.WriteString("0\r\n")
	for _, line := range r.trailer {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

func (r *request) bytes() []byte { return append(r.head(), r.content()...) }

// reply is the answer to a request.
type reply struct {
	status  int
	header  http.Header
	body    []byte
	trailer http.Header
	early   []int // the statuses of informational answers
	chunked bool
	minor   int
	closes  bool // the connection ends with it
	// number is the run whose answer it is if ofService, which does not name it.
	ofService bool
	number    int
	err       error // there is no answer, or it broke off; status is 0 when there is none
}

// String describes the answer in a few words.
func (r *reply) String() string {
	switch {
	case r.err != nil && r.status == 0:
		return "no answer: " + plain(r.err)
	case r.err != nil:
		return fmt.Sprintf("%d, broken off after %d bytes: %s", r.status, len(r.body), plain(r.err))
	}
	text := strconv.Itoa(r.status)
	if media := r.header.Get("Content-Type"); media != "" {
		text += " " + media
	}
	return text + ": " + excerpt(r.body)
}

// plain describes an error without addresses, because these differ from run to run.
func plain(err error) string {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "nothing more came in time"
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the connection ended"
	case strings.Contains(err.Error(), "reset"), strings.Contains(err.Error(), "broken pipe"):
		return "the connection was reset"
	}
	return err.Error()
}

// mostShown is how much of a body is shown.
const mostShown = 120

func excerpt(b []byte) string {
	if len(b) > mostShown {
		return fmt.Sprintf("%q… (%d bytes)", b[:mostShown], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// line is one connection to the target.
type line struct {
	net.Conn
	r        *bufio.Reader
	in       *bounded         // what r reads
	deadline time.Time        // zero: none
	runOf    func(*reply) int // nil: the origin names the run
}

// dial connects to the target. The connection ends with ctx at the latest.
func dial(ctx context.Context, u *url.URL) (*line, error) {
	addr := u.Host
	if u.Port() == "" {
		port := "80"
		if u.Scheme == "https" {
			port = "443"
		}
		addr = net.JoinHostPort(u.Hostname(), port)
	}
	var c net.Conn
	var err error
	if u.Scheme == "https" {
		c, err = (&tls.Dialer{Config: &tls.Config{NextProtos: []string{"http/1.1"}}}).DialContext(ctx, "tcp", addr)
	} else {
		c, err = new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	in := &bounded{r: c, left: math.MaxInt}
	return &line{Conn: c, r: bufio.NewReader(in), in: in, deadline: deadline}, nil
}

// bounded reads left bytes at most.
type bounded struct {
	r    io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("its header has more than %d MiB", maxHead>>20)
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// send writes requests, in one piece.
func (l *line) send(requests ...*request) error {
	var all []byte
	for _, r := range requests {
		all = append(all, r.bytes()...)
	}
	_, err := l.Write(all)
	return err
}

// maxBody bounds the length of an answer. No case asks for more.
const maxBody = 64 << 20

// maxHead bounds the length of a header, with those of the informational answers before it.
const maxHead = 1 << 20

// reply reads the final answer to a request, and the informational ones before it.
func (l *line) reply(method string) *reply {
	a := new(reply)
	content, err := l.headOf(method, a)
	if err != nil {
		a.err = err
		return a
	}
	if a.body, a.err = io.ReadAll(io.LimitReader(content, maxBody+1)); len(a.body) > maxBody {
		a.err = fmt.Errorf("its body has more than %d MiB", maxBody>>20)
	}
	a.trailer = content.Trailer
	if l.runOf != nil {
		a.ofService, a.number = true, l.runOf(a)
	}
	return a
}

// content is the body of an answer. There is nothing to close: it is a part of what the
// connection brings.
type content struct{ *http.Response }

func (c content) Read(p []byte) (int, error) { return c.Body.Read(p) }

// headOf reads the header of the final answer into a.
func (l *line) headOf(method string, a *reply) (content, error) {
	l.in.left = maxHead
	defer func() { l.in.left = math.MaxInt }()
	for {
		res, err := http.ReadResponse(l.r, &http.Request{Method: method}) //nolint:bodyclose // see content
		if err != nil {
			return content{}, err
		}
		if 100 <= res.StatusCode && res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols {
			a.early = append(a.early, res.StatusCode)
			continue
		}
		a.status, a.header = res.StatusCode, res.Header
		a.chunked = len(res.TransferEncoding) > 0
		a.minor, a.closes = res.ProtoMinor, res.Close
		return content{res}, nil
	}
}

// await waits for the first byte of an answer, and reports whether it came in time.
func (l *line) await(d time.Duration) bool {
	_ = l.SetReadDeadline(time.Now().Add(d))
	defer func() { _ = l.SetReadDeadline(l.deadline) }()
	_, err := l.r.Peek(1)
	return err == nil
}

// run returns the number of the run whose answer it is, or 0 if it is not the origin's. The body
// has it too, because some targets do not store fields.
func (r *reply) run() int {
	if r.ofService {
		return r.number
	}
	text := r.header.Get(runField)
	if rest, ok := strings.CutPrefix(string(r.body), "run "); ok && text == "" {
		text, _, _ = strings.Cut(rest, " of ")
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}

// key returns the key for which the origin made the answer.
func (r *reply) key() string {
	_, key, _ := strings.Cut(strings.TrimSuffix(string(r.body), "\n"), " of ")
	return key
}

// values returns the lines of a field.
func (r *reply) values(name string) []string {
	return r.header[textproto.CanonicalMIMEHeaderKey(name)]
}

// upgraded reads an answer after which the connection may have another protocol.
func (l *line) upgraded() *reply {
	a := new(reply)
	if _, err := l.headOf(http.MethodGet, a); err != nil {
		a.err = err
	}
	return a
}

// echo sends a text, and returns what comes back, up to its length.
func (l *line) echo(text string) string {
	if _, err := io.WriteString(l, text); err != nil {
		return ""
	}
	b := make([]byte, len(text))
	n, _ := io.ReadFull(l.r, b) // what is missing is seen
	return string(b[:n])
}
