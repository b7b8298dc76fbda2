package idempotency

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/content"
	"github.com/dibs-go/dibs/internal/slow"
)

// protocol is what a request speaks on top of HTTP. gRPC and Connect have statuses of their own: an
// HTTP status of 200 says nothing.
type protocol uint8

const (
	plainHTTP     protocol = iota
	grpc                   // application/grpc: the status is in the trailer
	grpcWeb                // application/grpc-web: the trailer is the last frame of the body
	connectUnary           // an HTTP status, and an error in JSON
	connectStream          // application/connect+…: the error is in the last frame of the body
)

// protocolOf returns the protocol by the Content-Type. A header with several of them has none, because
// each of its readers would choose another line.
func protocolOf(h http.Header) protocol {
	if len(h["Content-Type"]) > 1 {
		return plainHTTP
	}
	media, _, _ := strings.Cut(strings.ToLower(h.Get("Content-Type")), ";")
	media = strings.TrimSpace(media)
	switch {
	case strings.HasPrefix(media, "application/grpc-web"):
		return grpcWeb
	case media == "application/grpc", strings.HasPrefix(media, "application/grpc+"):
		return grpc
	case strings.HasPrefix(media, "application/connect+"):
		return connectStream
	case len(h["Connect-Protocol-Version"]) > 0:
		return connectUnary
	}
	return plainHTTP
}

// withoutDeadlines removes the fields in which a client of gRPC or Connect says how long it waits,
// because they end its waiting and not the run; and has a call of MCP accept no encoding.
func withoutDeadlines(r *http.Request) *http.Request {
	if r.Header.Get("Grpc-Timeout") != "" || r.Header.Get("Connect-Timeout-Ms") != "" {
		r.Header = r.Header.Clone()
		r.Header.Del("Grpc-Timeout")
		r.Header.Del("Connect-Timeout-Ms")
	}
	if messageOf(r.Context()) != nil {
		return withoutEncoding(r)
	}
	return r
}

// withoutEncoding makes a request accept no encoding, because the answer could not be read.
func withoutEncoding(r *http.Request) *http.Request {
	r.Header = r.Header.Clone()
	r.Header.Set("Accept-Encoding", "identity") // RFC 9110, 12.5.3: without the field, any may be sent
	return r
}

type rpcCode struct {
	name   string
	status int // the HTTP status that is treated alike
}

// rpcCodes are the codes of gRPC (google.rpc.Code) with Connect's names for them.
var rpcCodes = []rpcCode{
	0: {"ok", 200}, 1: {"canceled", 500}, 2: {"unknown", 500}, 3: {"invalid_argument", 400},
	4: {"deadline_exceeded", 504}, 5: {"not_found", 404}, 6: {"already_exists", 400},
	7: {"permission_denied", 403}, 8: {"resource_exhausted", 429}, 9: {"failed_precondition", 400},
	10: {"aborted", 409}, 11: {"out_of_range", 400}, 12: {"unimplemented", 501}, 13: {"internal", 500},
	14: {"unavailable", 503}, 15: {"data_loss", 500}, 16: {"unauthenticated", 401},
}

// codeOf returns the code of a problem.
func codeOf(p Problem) int {
	name := cmp.Or(p.code, "invalid_argument")
	if p.code == "" && (p.Status >= 500 || p.Status == http.StatusRequestTimeout) {
		name = "unavailable"
	}
	return codeNamed(name)
}

// writeRPCProblem answers a request of gRPC or Connect with a problem, in its protocol.
func writeRPCProblem(w http.ResponseWriter, r *http.Request, p Problem) {
	code := codeOf(p)
	text := p.Title + " (" + DocsURL + "#" + p.Name + ")"
	h := w.Header()
	clearContent(h)
	if p.RetryAfter > 0 {
		h.Set("Retry-After", retryAfterOf(p))
		h.Set("Grpc-Retry-Pushback-Ms", strconv.FormatInt(p.RetryAfter.Milliseconds(), 10))
	}
	said, _ := json.Marshal(map[string]any{"code": rpcCodes[code].name, "message": text}) // which cannot fail
	switch protocolOf(r.Header) {
	case connectUnary:
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", strconv.Itoa(len(said)))
		w.WriteHeader(p.Status)
		_, _ = w.Write(said)
	case connectStream:
		h.Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusOK)
		end := append([]byte(`{"error":`), append(said, '}')...)
		_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{connectEnd}, uint32(len(end))), end...))
	default:
		// The answer is its trailer alone, which is sent as the header.
		h.Set("Content-Type", r.Header.Get("Content-Type"))
		h.Set("Grpc-Status", strconv.Itoa(code))
		h.Set("Grpc-Message", strings.ReplaceAll(url.QueryEscape(text), "+", "%20"))
		w.WriteHeader(http.StatusOK)
	}
}

// Flags of frames.
const (
	compressed = 0x01
	connectEnd = 0x02
	webTrailer = 0x80
)

// rpcStatus returns the HTTP status that stands for the status of gRPC or Connect. ok is false for
// any other answer, and for a failure of HTTP itself. whole says whether the body is complete.
func rpcStatus(status int, header, trailer http.Header, body []byte, whole bool) (rpc int, ok bool) {
	protocol := protocolOf(header)
	if status != http.StatusOK || protocol != grpc && protocol != grpcWeb && protocol != connectStream {
		return 0, false
	}
	code := header.Get("Grpc-Status")
	switch {
	case protocol == grpc:
		return statusOfCode(cmp.Or(trailer.Get("Grpc-Status"), code)), true
	case protocol == grpcWeb && code != "":
		return statusOfCode(code), true
	case !whole:
		return 0, false
	case protocol == grpcWeb:
		return webStatus(header, body), true
	}
	var end struct {
		Error *struct{ Code string }
	}
	text, err := lastFrame(body, connectEnd, header.Get("Connect-Content-Encoding"))
	switch {
	case err != nil:
		return http.StatusOK, true
	case json.Unmarshal(text, &end) != nil:
		return http.StatusInternalServerError, true
	case end.Error == nil:
		return http.StatusOK, true
	}
	return statusOfName(end.Error.Code), true
}

// webStatus is rpcStatus for an answer of gRPC-Web, whose trailer is its last frame.
func webStatus(header http.Header, body []byte) int {
	if strings.HasPrefix(strings.ToLower(header.Get("Content-Type")), "application/grpc-web-text") {
		body = decodeText(body)
	}
	fields, err := lastFrame(body, webTrailer, header.Get("Grpc-Encoding"))
	if err != nil {
		return http.StatusOK
	}
	for line := range strings.SplitSeq(string(fields), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(strings.TrimSpace(name), "grpc-status") {
			return statusOfCode(strings.TrimSpace(value))
		}
	}
	return http.StatusInternalServerError
}

// statusOfCode returns the HTTP status for a code of gRPC. An unknown or missing code is a failure.
func statusOfCode(code string) int {
	if n, err := strconv.Atoi(code); err == nil && n >= 0 && n < len(rpcCodes) {
		return rpcCodes[n].status
	}
	return http.StatusInternalServerError
}

// statusOfName is statusOfCode for a code by Connect's name.
func statusOfName(name string) int { return statusOfCode(strconv.Itoa(codeNamed(name))) }

// codeNamed returns the code by Connect's name; -1 if there is none.
func codeNamed(name string) int {
	return slices.IndexFunc(rpcCodes, func(c rpcCode) bool { return c.name == name })
}

// connectStatus returns the HTTP status that stands for the error of Connect in a body; ok is false
// if there is none. The HTTP status of the answer does not say it, because ALREADY_EXISTS and
// ABORTED have the same one, and that of CANCELED is below 500.
func connectStatus(encoding string, body []byte) (status int, ok bool) {
	text, err := statusText(encoding, body)
	if err != nil {
		return 0, false
	}
	var failure struct{ Code string }
	if json.Unmarshal(text, &failure) != nil || failure.Code == "" {
		return 0, false
	}
	return statusOfName(failure.Code), true
}

// lastFrame returns the content of the frame with the flag; nil if there is none. It returns an
// error if the content cannot be decompressed. Such an answer is kept, because a failure that is
// replayed does less harm than a success that runs again.
func lastFrame(body []byte, flag byte, encoding string) ([]byte, error) {
	for len(body) >= 5 {
		flags, n := body[0], int64(binary.BigEndian.Uint32(body[1:5]))
		if n > int64(len(body)-5) {
			return nil, nil
		}
		switch content := body[5 : 5+n]; {
		case flags&flag == 0:
			body = body[5+n:]
		case flags&compressed == 0:
			return content, nil
		default:
			return statusText(encoding, content)
		}
	}
	return nil, nil
}

// maxStatus is how many bytes a compressed status may have.
const maxStatus = 64 << 10

// statusText returns what a part of an answer holds that has a status.
func statusText(encoding string, part []byte) ([]byte, error) {
	if content.IsIdentity(encoding) {
		return part, nil
	}
	var text bytes.Buffer
	_, err := content.Decompress(encoding, bytes.NewReader(part), &text, maxStatus)
	return text.Bytes(), err
}

// decodeText decodes base64 in pieces that each have their own padding.
func decodeText(text []byte) (out []byte) {
	for text = bytes.TrimSpace(text); len(text) >= 4; text = text[4:] {
		var piece [3]byte
		n, err := base64.StdEncoding.Decode(piece[:], text[:4])
		if err != nil {
			return out
		}
		out = append(out, piece[:n]...)
	}
	return out
}

// firstMessageLimit is how long a gRPC request may take to end after its first message. A request
// that takes longer streams: it waits for answers before it goes on.
const firstMessageLimit = 5 * time.Second

// unaryReader is the body of a gRPC request, which must end soon after its first message.
type unaryReader struct {
	*slow.Reader
	head [5]byte
	n    int // bytes of head
	read int64
	end  time.Time // zero until the first message is there
}

// Read reads from the body. It returns errStream if the body does not end.
func (r *unaryReader) Read(p []byte) (int, error) {
	if r.begun() {
		if r.end.IsZero() {
			r.end = time.Now().Add(firstMessageLimit)
		}
		r.Pause = min(r.Pause, time.Until(r.end))
	}
	n, err := r.Reader.Read(p)
	r.n += copy(r.head[r.n:], p[:n])
	r.read += int64(n)
	if errors.Is(err, os.ErrDeadlineExceeded) && r.begun() {
		err = errStream
	}
	return n, err
}

// begun reports whether the first message is there.
func (r *unaryReader) begun() bool {
	return r.n == len(r.head) && r.read >= int64(len(r.head))+int64(binary.BigEndian.Uint32(r.head[1:]))
}
