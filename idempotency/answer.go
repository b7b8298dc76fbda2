package idempotency

import (
	"bytes"
	"errors"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

// ContentType is the media type of a stored answer before it is deflated.
const ContentType = "application/http"

// maxHead is how many bytes of header and trailer are stored; an answer with
// more is too long to be kept.
const maxHead = 256 << 10

// ErrRecord says that what the store has is not a stored answer, or a longer
// one than allowed.
var ErrRecord = errors.New("idempotency: not a stored answer")

// Answer is a stored answer. In the store it is an HTTP/1.1 response message
// (application/http), deflated (RFC 1951). It serves operators: the Middleware
// itself reads and writes records without it.
type Answer struct {
	Status  int
	Header  http.Header
	Body    []byte
	Trailer http.Header
	// NotKept says that this is a tombstone: the request was served, but its
	// answer was too long to be kept. Only Status counts then: the one that
	// was sent.
	NotKept bool
}

// EncodeAnswer returns the record of an answer. The status must be 200 to 599.
// Fields that belong to a connection or a moment, and Set-Cookie, are left out.
func EncodeAnswer(a *Answer) ([]byte, error) {
	if a.Status < 200 || a.Status > 599 {
		return nil, errors.New("idempotency: the status of a stored answer must be 200 to 599")
	}
	var header, trailer fieldList
	header.take(a.Header)
	trailer.take(a.Trailer)
	var f filter
	body := a.Body
	if a.NotKept {
		header, trailer, body = fieldList{}, fieldList{}, nil
	}
	message := appendMessage(nil, a.Status, &header, &trailer, body, &f, "", "", a.NotKept)
	return appendDeflated(nil, message), nil
}

// DecodeAnswer reads a record. limit is how many bytes header and body may have;
// 0 means 64 MiB. It returns ErrRecord for anything else than a record.
func DecodeAnswer(record []byte, limit int64) (*Answer, error) {
	if limit <= 0 {
		limit = 64 << 20
	}
	text, err := inflate(nil, record, limit)
	if err != nil {
		return nil, err
	}
	m, err := parseMessage(text)
	if err != nil {
		return nil, err
	}
	a := &Answer{Status: m.status, Header: make(http.Header), Body: bytes.Clone(m.body), NotKept: m.notKept}
	m.header(func(name, value string) { a.Header[name] = append(a.Header[name], value) })
	m.trailer(func(name, value string) {
		if a.Trailer == nil {
			a.Trailer = make(http.Header)
		}
		a.Trailer[name] = append(a.Trailer[name], value)
	})
	return a, nil
}

// A fieldList is a header's fields at one moment, sorted by name. It is reused.
type fieldList struct {
	names  []string
	ends   []int // where each name's values end in values
	values []string
}

// take replaces the list by the fields of h.
func (l *fieldList) take(h http.Header) {
	l.reset()
	for name := range h {
		l.names = append(l.names, name)
	}
	if len(l.names) > 1 {
		slices.Sort(l.names)
	}
	for _, name := range l.names {
		l.values = append(l.values, h[name]...)
		l.ends = append(l.ends, len(l.values))
	}
}

// reset empties the list and lets go of its strings.
func (l *fieldList) reset() {
	clear(l.names)
	clear(l.values)
	l.names, l.ends, l.values = l.names[:0], l.ends[:0], l.values[:0]
}

// at returns the values of the ith name.
func (l *fieldList) at(i int) []string {
	start := 0
	if i > 0 {
		start = l.ends[i-1]
	}
	return l.values[start:l.ends[i]:l.ends[i]]
}

// lookup returns the values of a field by its canonical name.
func (l *fieldList) lookup(name string) ([]string, bool) {
	i, ok := slices.BinarySearch(l.names, name)
	if !ok {
		return nil, false
	}
	return l.at(i), true
}

// is reports whether h has these fields and no others.
func (l *fieldList) is(h http.Header) bool {
	if len(h) != len(l.names) {
		return false
	}
	for i, name := range l.names {
		values, ok := h[name]
		if !ok || !slices.Equal(values, l.at(i)) {
			return false
		}
	}
	return true
}

// restore makes h have these fields and no others.
func (l *fieldList) restore(h http.Header) {
	if l.is(h) {
		return
	}
	clear(h)
	for i, name := range l.names {
		h[name] = slices.Clone(l.at(i))
	}
}

// appendMessage appends an HTTP/1.1 response message. contentType is added
// when it is not "".
func appendMessage(dst []byte, status int, header, trailer *fieldList, body []byte, f *filter, contentType, trace string, notKept bool) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	dst = append(dst, ' ')
	dst = append(dst, http.StatusText(status)...)
	dst = append(dst, "\r\n"...)
	if notKept {
		dst = appendField(dst, notKeptField, "1")
	}
	if trace != "" {
		dst = appendField(dst, traceField, trace)
	}
	connection, _ := header.lookup("Connection")
	dst = appendFields(dst, header, f, connection)
	if contentType != "" {
		dst = appendField(dst, "Content-Type", contentType)
	}
	var tail []byte
	if len(trailer.names) > 0 {
		tail = appendFields(nil, trailer, f, connection)
	}
	if len(tail) == 0 {
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, int64(len(body)), 10)
		dst = append(dst, "\r\n\r\n"...)
		return append(dst, body...)
	}
	// Only a chunked message can have a trailer.
	dst = append(dst, "Transfer-Encoding: chunked\r\n\r\n"...)
	if len(body) > 0 {
		dst = strconv.AppendInt(dst, int64(len(body)), 16)
		dst = append(dst, "\r\n"...)
		dst = append(dst, body...)
		dst = append(dst, "\r\n"...)
	}
	dst = append(dst, "0\r\n"...)
	dst = append(dst, tail...)
	return append(dst, "\r\n"...)
}

func appendFields(dst []byte, l *fieldList, f *filter, connection []string) []byte {
	for i, name := range l.names {
		if !f.stores(name, connection) {
			continue
		}
		for _, value := range l.at(i) {
			dst = appendField(dst, name, value)
		}
	}
	return dst
}

// appendField appends one line. A line break within the value would begin
// another field: net/http sends a space in its place, and so does a replay.
func appendField(dst []byte, name, value string) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	value = textproto.TrimString(value)
	if strings.ContainsAny(value, "\r\n") {
		value = lineBreaks.Replace(value)
	}
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

var lineBreaks = strings.NewReplacer("\r", " ", "\n", " ")

// message is a parsed record. Its parts point into the text.
type message struct {
	status    int
	notKept   bool
	trace     string // of the run, as Options.Trace had it
	headLines []byte
	body      []byte
	tailLines []byte
	noType    bool // there is no Content-Type
}

// header calls each for every line that belongs to the answer.
func (m *message) header(each func(name, value string)) { eachField(string(m.headLines), each) }

// trailer calls each for every line of the trailer.
func (m *message) trailer(each func(name, value string)) { eachField(string(m.tailLines), each) }

// eachField calls each for every line of a field block that parseMessage
// accepted, except those that say how the record itself is framed.
func eachField(lines string, each func(name, value string)) {
	for lines != "" {
		line, rest, _ := strings.Cut(lines, "\r\n")
		lines = rest
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "Content-Length", "Transfer-Encoding", notKeptField, traceField:
			continue
		}
		each(name, strings.Trim(value, " \t"))
	}
}

// parseMessage reads what appendMessage wrote.
func parseMessage(text []byte) (m message, err error) {
	line, rest, ok := bytes.Cut(text, []byte("\r\n"))
	if !ok || len(line) < len("HTTP/1.1 200 ") || string(line[:9]) != "HTTP/1.1 " || line[12] != ' ' {
		return m, ErrRecord
	}
	m.status, ok = parseNumber(line[9:12], 10)
	if !ok || m.status < 200 {
		return m, ErrRecord
	}
	framing, err := m.parseHead(&rest)
	if err != nil {
		return m, err
	}
	if framing.chunked {
		return m, m.parseChunks(rest)
	}
	if framing.length != len(rest) {
		return m, ErrRecord
	}
	m.body = rest
	return m, nil
}

// framing is how a record says where its body ends.
type framing struct {
	length  int // -1: it does not say
	chunked bool
}

// parseHead takes the header off rest.
func (m *message) parseHead(rest *[]byte) (framing, error) {
	f := framing{length: -1}
	m.noType = true
	lines, err := cutFields(rest, func(name, value []byte) bool {
		ok := true
		switch string(name) {
		case "Content-Length":
			ok = f.length < 0
			if ok {
				f.length, ok = parseNumber(value, 10)
			}
		case "Transfer-Encoding":
			f.chunked = true
			ok = string(value) == "chunked"
		case "Content-Type":
			m.noType = false
		case notKeptField:
			m.notKept = true
		case traceField:
			m.trace = string(value)
		}
		return ok
	})
	if err != nil || f.chunked == (f.length >= 0) {
		return f, ErrRecord
	}
	m.headLines = lines
	return f, nil
}

// parseChunks reads a chunked body and its trailer.
func (m *message) parseChunks(rest []byte) error {
	chunks := 0
	for {
		line, after, ok := bytes.Cut(rest, []byte("\r\n"))
		size, isNumber := parseNumber(line, 16)
		if !ok || !isNumber {
			return ErrRecord
		}
		rest = after
		if size == 0 {
			break
		}
		if size > len(rest)-2 || string(rest[size:size+2]) != "\r\n" {
			return ErrRecord
		}
		if chunks++; chunks == 1 {
			m.body = rest[:size:size]
		} else {
			m.body = append(m.body, rest[:size]...)
		}
		rest = rest[size+2:]
	}
	lines, err := cutFields(&rest, func(_, _ []byte) bool { return true })
	if err != nil || len(rest) > 0 {
		return ErrRecord
	}
	m.tailLines = lines
	return nil
}

// cutFields takes a block of field lines and the empty line after it off rest.
func cutFields(rest *[]byte, check func(name, value []byte) bool) (lines []byte, err error) {
	block := *rest
	n := 0
	for {
		line, after, ok := bytes.Cut(block[n:], []byte("\r\n"))
		if !ok {
			return nil, ErrRecord
		}
		if len(line) == 0 {
			*rest = after
			return block[:n], nil
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || len(name) == 0 || bytes.ContainsAny(value, "\r\n") {
			return nil, ErrRecord
		}
		for _, c := range name {
			if !tokenChar[c] {
				return nil, ErrRecord
			}
		}
		if !check(name, bytes.Trim(value, " \t")) {
			return nil, ErrRecord
		}
		n += len(line) + 2
	}
}

// parseNumber reads a number that has nothing but digits.
func parseNumber(b []byte, base int) (int, bool) {
	if len(b) == 0 || len(b) > 15 {
		return 0, false
	}
	n := 0
	for _, c := range b {
		d := 16
		switch {
		case '0' <= c && c <= '9':
			d = int(c - '0')
		case 'a' <= c && c <= 'f':
			d = int(c-'a') + 10
		}
		if d >= base {
			return 0, false
		}
		n = n*base + d
	}
	return n, true
}
