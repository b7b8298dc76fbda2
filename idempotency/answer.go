package idempotency

import (
	"bufio"
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/internal/dialect"
)

// maxHead is how many bytes of header and trailer are stored. An answer with more is too long to be
// kept.
const maxHead = 256 << 10

// deflateFrom is the length in bytes from which a message is compressed, because compressing a
// shorter one takes longer than it saves.
const deflateFrom = 4 << 10

// ErrRecord says that what the store has cannot be read as a stored answer: it is something else, it
// is longer than allowed, or the key ring cannot decrypt it.
var ErrRecord = errors.New("idempotency: the stored answer cannot be read")

// errNoResponse says what an answer to a call of MCP must be.
var errNoResponse = errors.New("idempotency: the key is that of a call of a tool (MCP), so the body must be a response of JSON-RPC, " +
	`such as {"jsonrpc":"2.0","id":0,"result":{"content":[]}}`)

// Answer is a stored answer. Its record in the store is an HTTP/1.1 response message
// (application/http). A record that does not begin with "HTTP/" is deflated (RFC 1951). A KeyRing
// encrypts the record.
type Answer struct {
	Status  int
	Header  http.Header
	Body    []byte
	Trailer http.Header
	// NotKept says that this is a tombstone: the request was served, but its answer was too long to
	// be kept. Only Status counts then: the one that was sent.
	NotKept bool

	trace string // of the run, as Options.Trace returned it
	asked string // the digest of the run's request; "" unless only keys are compared
}

// EncodeAnswer returns the record of an answer for a key, by the key's name in the store. The status
// must be 200 to 599, and with 204 or 304 there must be no body. Fields that belong to a connection or a
// moment, and Set-Cookie, are left out. For a call of a tool (MCP) the body must be a response of JSON-RPC;
// its type is set. A retry's id replaces the one in it.
func EncodeAnswer(name string, a *Answer) ([]byte, error) {
	if a.Status < 200 || a.Status > 599 {
		return nil, errors.New("idempotency: the status of a stored answer must be 200 to 599")
	}
	stored := Answer{Status: a.Status, NotKept: a.NotKept}
	if !a.NotKept {
		if len(a.Body) > 0 && (a.Status == http.StatusNoContent || a.Status == http.StatusNotModified) {
			return nil, fmt.Errorf("idempotency: an answer with status %d has no body", a.Status)
		}
		var o Options
		connection := a.Header["Connection"]
		stored.Body, stored.Header, stored.Trailer = a.Body, o.stored(a.Header, connection), o.stored(a.Trailer, connection)
	}
	if strings.HasPrefix(name, dialect.CallPrefix) && !stored.NotKept {
		if !dialect.AnswersCall(stored.Body) {
			return nil, errNoResponse
		}
		stored.Header["Content-Type"] = []string{"application/json"}
	}
	return deflate(stored.message()), nil
}

// message returns the answer as an HTTP/1.1 message.
func (a *Answer) message() []byte {
	h := make(http.Header, len(a.Header)+3)
	maps.Copy(h, a.Header)
	r := http.Response{StatusCode: a.Status, ProtoMajor: 1, ProtoMinor: 1, Header: h, ContentLength: int64(len(a.Body))}
	r.Body = io.NopCloser(bytes.NewReader(a.Body))
	if len(a.Trailer) > 0 { // which only a chunked message can have
		r.Trailer, r.TransferEncoding, r.ContentLength = a.Trailer, []string{"chunked"}, -1
	}
	if a.NotKept {
		h.Set(notKeptField, "1")
	}
	if a.trace != "" {
		h.Set(traceField, a.trace)
	}
	if a.asked != "" {
		h.Set(askedField, a.asked)
	}
	var message bytes.Buffer
	message.Grow(len(a.Body) + 512)
	_ = r.Write(&message) // a Buffer accepts everything
	return message.Bytes()
}

// deflate compresses a message that is long.
func deflate(message []byte) []byte {
	if len(message) < deflateFrom {
		return message
	}
	var record bytes.Buffer
	w, _ := flate.NewWriter(&record, flate.BestSpeed) // the level exists
	_, _ = w.Write(message)                           // a Buffer accepts everything
	_ = w.Close()
	return record.Bytes()
}

// DecodeAnswer parses a record. limit is how many bytes header and body may have; 0 means 64 MiB.
// It returns ErrRecord for anything other than a record. An encrypted record must be decrypted first.
func DecodeAnswer(record []byte, limit int64) (*Answer, error) {
	if limit <= 0 {
		limit = 64 << 20
	}
	return decodeAnswer(record, limit, func(int64) bool { return true })
}

// decodeAnswer is DecodeAnswer, and returns errMaxBodyMemory if take refuses the memory for what a
// record is inflated to.
func decodeAnswer(record []byte, limit int64, take func(n int64) bool) (*Answer, error) {
	if id, ok := EncryptedWith(record); ok {
		return nil, fmt.Errorf("%w: it is encrypted with the key %q", ErrRecord, id)
	}
	message, err := record, error(nil)
	if !bytes.HasPrefix(record, []byte("HTTP/")) {
		if message, err = inflate(record, limit, take); err != nil {
			return nil, err
		}
	}
	if int64(len(message)) > limit {
		return nil, ErrRecord
	}
	a, err := parseMessage(message)
	if err != nil {
		return nil, errors.Join(ErrRecord, err)
	}
	return a, nil
}

// inflate returns what a deflated record holds, up to one more byte than limit.
func inflate(record []byte, limit int64, take func(n int64) bool) ([]byte, error) {
	in := io.LimitReader(flate.NewReader(bytes.NewReader(record)), limit+1)
	message := []byte(nil)
	for {
		if n := len(message); n == cap(message) {
			more := max(n, 4*len(record), 512)
			if !take(int64(more)) {
				return nil, errMaxBodyMemory
			}
			message = append(make([]byte, 0, n+more), message...)
		}
		n, err := in.Read(message[len(message):cap(message)])
		message = message[:len(message)+n]
		switch {
		case err == io.EOF:
			return message, nil
		case err != nil:
			return nil, errors.Join(ErrRecord, err)
		}
	}
}

// parseMessage parses what message returned. http.ReadResponse would change the header, and accept
// a body that is cut off.
func parseMessage(message []byte) (*Answer, error) {
	head, body, ok := bytes.Cut(message, []byte("\r\n\r\n"))
	line, fields, _ := strings.Cut(string(head), "\r\n")
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if !ok || version != "HTTP/1.1" || err != nil || len(code) != 3 || status < 200 {
		return nil, ErrRecord
	}
	a := &Answer{Status: status, Body: body}
	if a.Header, err = parseFields(fields); err != nil {
		return nil, err
	}
	if len(a.Header["Transfer-Encoding"]) > 0 {
		in := bufio.NewReader(bytes.NewReader(body))
		if a.Body, err = io.ReadAll(httputil.NewChunkedReader(in)); err != nil {
			return nil, err
		}
		trailer, _ := io.ReadAll(in) // from memory
		if a.Trailer, err = parseFields(string(trailer)); err != nil {
			return nil, err
		}
	} else if length := a.Header.Get("Content-Length"); length != strconv.Itoa(len(body)) && (length != "" || len(body) > 0) {
		return nil, ErrRecord
	}
	a.NotKept, a.trace, a.asked = len(a.Header[notKeptField]) > 0, a.Header.Get(traceField), a.Header.Get(askedField)
	for _, name := range []string{"Content-Length", "Transfer-Encoding", "Trailer", notKeptField, traceField, askedField} {
		delete(a.Header, name)
	}
	return a, nil
}

// parseFields parses the lines of a header or trailer.
func parseFields(text string) (http.Header, error) {
	h := make(http.Header)
	for line := range strings.SplitSeq(strings.TrimRight(text, "\r\n"), "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		switch {
		case line == "":
		case !ok || name == "" || strings.ContainsAny(value, "\r\n"):
			return nil, ErrRecord
		default:
			h.Add(name, strings.Trim(value, " \t"))
		}
	}
	return h, nil
}
