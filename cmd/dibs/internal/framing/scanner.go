// Package framing watches how the requests on a connection are framed.
//
// A request that carries both Content-Length and Transfer-Encoding means two
// things to two readers, which is how requests are smuggled past a guard.
// net/http resolves the conflict silently: it drops Content-Length and hands
// the request on as if it had been clean. By the time a handler sees the
// request, there is nothing left to refuse. So a Conn reads along, byte by
// byte as net/http reads, and remembers which request of the connection was
// ambiguous; the handler asks it.
package framing

import (
	"bytes"
	"math"
)

// Scanner follows the framing of the HTTP/1 requests that arrive on one
// connection. It keeps a constant, small amount of memory however the stream is
// cut into pieces. The zero Scanner is at the start of a connection.
type Scanner struct {
	state    state
	requests int   // header blocks that are complete
	bad      int   // the first ambiguous request, counted from 1; 0: none
	left     int64 // in body, chunk: bytes that remain

	// Of the current header block.
	length    int64 // Content-Length; -1 when there is none
	hasTE     bool
	old       bool // HTTP/1.0 or something we do not know
	framed    bool // the last header line was one of the two that frame
	ambiguous bool

	// The current line: its first bytes and its last eight.
	line [128]byte
	n    int // bytes kept in line
	size int // bytes that the line has so far
	tail [8]byte
}

// state is what the next byte belongs to.
type state uint8

const (
	start   state = iota // a request line, or the empty lines before it
	header               // a header line
	body                 // a body of known length
	size                 // the line before a chunk
	chunk                // a chunk
	gap                  // the line end after a chunk
	trailer              // a trailer line
	aside                // not HTTP/1 requests, or not any more
)

// Scan reads on.
func (s *Scanner) Scan(p []byte) {
	for len(p) > 0 {
		switch s.state {
		case aside:
			return
		case body, chunk:
			n := min(s.left, int64(len(p)))
			p, s.left = p[n:], s.left-n
			if s.left == 0 {
				s.bodyDone()
			}
		default:
			end := bytes.IndexByte(p, '\n')
			if end < 0 {
				s.keep(p)
				return
			}
			if s.size == 0 && end <= len(s.line) {
				// The usual case needs no copy.
				s.endLine(p[:end], false)
			} else {
				s.keep(p[:end])
				s.endLine(s.line[:s.n], s.size > s.n)
				s.n, s.size = 0, 0
			}
			p = p[end+1:]
		}
	}
}

// Bad returns the number, counted from 1, of the first request that was framed
// ambiguously; 0 when there was none so far.
func (s *Scanner) Bad() int { return s.bad }

// Owing reports whether the peer has sent the header of a request and not all
// of its body.
func (s *Scanner) Owing() bool { return body <= s.state && s.state <= trailer }

// keep remembers what is needed of a part of the current line.
func (s *Scanner) keep(p []byte) {
	s.n += copy(s.line[s.n:], p)
	s.size += len(p)
	if len(p) >= len(s.tail) {
		copy(s.tail[:], p[len(p)-len(s.tail):])
		return
	}
	copy(s.tail[:], s.tail[len(p):])
	copy(s.tail[len(s.tail)-len(p):], p)
}

// endLine acts on a line that is complete, without its '\n'. cut says that only
// its beginning was kept, and its tail.
func (s *Scanner) endLine(line []byte, cut bool) {
	if n := len(line); !cut && n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	switch s.state {
	case start:
		if len(line) > 0 {
			s.begin(line, cut)
		}
	case header:
		if len(line) > 0 {
			s.field(line, cut)
		} else {
			s.headerDone()
		}
	case size:
		s.chunkLine(line)
	case gap:
		s.state = size
	case trailer:
		if len(line) == 0 {
			s.next()
		}
	}
}

// begin starts a header block after its request line.
func (s *Scanner) begin(line []byte, cut bool) {
	if string(line) == "PRI * HTTP/2.0" {
		s.state = aside
		return
	}
	if cut {
		line = s.tail[:]
		if line[len(line)-1] == '\r' {
			line = line[:len(line)-1]
		}
	}
	s.state = header
	// Of a line that was cut, seven bytes of the version may be left: they tell
	// it as well.
	s.old = !bytes.HasSuffix(line, []byte("TTP/1.1"))
	s.length, s.hasTE, s.framed, s.ambiguous = -1, false, false, false
}

// field takes in a header line.
func (s *Scanner) field(line []byte, cut bool) {
	switch line[0] {
	case ' ', '\t':
		// A folded line. Where it continues a framing field, readers differ.
		s.ambiguous = s.ambiguous || s.framed
		return
	case 'c', 'C', 't', 'T':
	default:
		s.framed = false
		return
	}
	s.framed = false
	name, value, found := bytes.Cut(line, []byte{':'})
	switch {
	case !found:
	case isField(name, "content-length"):
		s.framed = true
		// Several equal lengths are one; net/http refuses the others. A length
		// that we cannot read is one that we cannot follow.
		n, ok := parseLength(bytes.TrimSpace(value))
		if s.length = n; !ok || cut {
			s.ambiguous = true
		}
	case isField(name, "transfer-encoding"):
		s.framed = true
		s.hasTE = true
	}
}

// isField compares a field's name without regard to case, and to the spaces
// that some readers tolerate before the colon.
func isField(name []byte, want string) bool {
	name = bytes.TrimRight(name, " \t\r")
	return len(name) == len(want) && bytes.EqualFold(name, []byte(want))
}

// headerDone decides how the body is framed.
func (s *Scanner) headerDone() {
	s.requests++
	// HTTP/1.0 has no Transfer-Encoding: one reader obeys it, another does not.
	if s.ambiguous || s.hasTE && (s.length >= 0 || s.old) {
		s.mark()
	}
	switch {
	case s.hasTE && !s.old:
		s.state = size
	case s.length > 0:
		s.state, s.left = body, s.length
	default:
		s.next()
	}
}

// mark notes that the current request is ambiguous.
func (s *Scanner) mark() {
	if s.bad == 0 {
		s.bad = s.requests
	}
}

// chunkLine reads the size of a chunk.
func (s *Scanner) chunkLine(line []byte) {
	line, _, _ = bytes.Cut(line, []byte{';'})
	n, ok := parseHex(bytes.TrimRight(line, " \t\r"))
	switch {
	case !ok:
		// net/http ends the connection here. Should it ever not do so, the
		// two of us no longer agree on where the next request begins.
		s.requests++
		s.mark()
		s.state = aside
	case n == 0:
		s.state = trailer
	default:
		s.state, s.left = chunk, n
	}
}

func (s *Scanner) bodyDone() {
	if s.state == chunk {
		s.state = gap
		return
	}
	s.next()
}

// next is at the start of another request.
func (s *Scanner) next() { s.state = start }

// parseLength reads a Content-Length.
func parseLength(p []byte) (int64, bool) {
	if len(p) == 0 {
		return 0, false
	}
	var n int64
	for _, c := range p {
		if c < '0' || c > '9' || n > (math.MaxInt64-9)/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// parseHex reads the size of a chunk.
func parseHex(p []byte) (int64, bool) {
	if len(p) == 0 || len(p) > 16 {
		return 0, false
	}
	var n int64
	for _, c := range p {
		if n > math.MaxInt64>>4 {
			return 0, false
		}
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		n = n<<4 | int64(c)
	}
	return n, true
}
