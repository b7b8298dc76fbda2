package idempotency

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// protocol is what a request speaks on top of HTTP. gRPC and Connect have statuses of
// their own: an HTTP status of 200 says nothing.
type protocol uint8

const (
	plainHTTP     protocol = iota
	grpc                   // application/grpc: the status is in the trailer
	grpcWeb                // application/grpc-web: the trailer is the last frame of the body
	connectUnary           // an HTTP status, and an error in JSON
	connectStream          // application/connect+…: the error is in the last frame of the body
)

// protocolOf returns the protocol by the Content-Type.
func protocolOf(h http.Header) protocol {
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

// rpcDeadlines are the fields in which a client says for how long it waits. They end its
// waiting and not the run, so that no handler gets them.
var rpcDeadlines = []string{"Grpc-Timeout", "Connect-Timeout-Ms"}

// withoutDeadlines takes rpcDeadlines out of a header, which it does not change.
func withoutDeadlines(h http.Header) http.Header {
	cloned := false
	for _, name := range rpcDeadlines {
		if len(h[name]) == 0 {
			continue
		}
		if !cloned {
			h, cloned = h.Clone(), true
		}
		delete(h, name)
	}
	return h
}

// Codes of gRPC (google.rpc.Code) and Connect's names for them.
var rpcCodes = []struct {
	name   string
	status int // of HTTP that is treated alike
}{
	0: {"ok", 200}, 1: {"canceled", 500}, 2: {"unknown", 500}, 3: {"invalid_argument", 400},
	4: {"deadline_exceeded", 504}, 5: {"not_found", 404}, 6: {"already_exists", 400},
	7: {"permission_denied", 403}, 8: {"resource_exhausted", 429}, 9: {"failed_precondition", 400},
	10: {"aborted", 409}, 11: {"out_of_range", 400}, 12: {"unimplemented", 501}, 13: {"internal", 500},
	14: {"unavailable", 503}, 15: {"data_loss", 500}, 16: {"unauthenticated", 401},
}

const (
	codeInvalidArgument    = 3
	codeDeadlineExceeded   = 4
	codeAlreadyExists      = 6
	codeResourceExhausted  = 8
	codeFailedPrecondition = 9
	codeAborted            = 10
	codeInternal           = 13
	codeUnavailable        = 14
)

// codeOf is the code with which a problem is answered.
func codeOf(p Problem) int {
	switch p.Name {
	case problemInProgress.Name:
		return codeAborted
	case problemUnknown.Name:
		return codeFailedPrecondition
	case problemNotKept.Name:
		return codeAlreadyExists
	case problemTooLarge.Name:
		return codeResourceExhausted
	case problemTimedOut.Name:
		return codeDeadlineExceeded
	case problemEnded.Name:
		return codeInternal
	}
	if p.Status >= 500 || p.Status == http.StatusRequestTimeout {
		return codeUnavailable
	}
	return codeInvalidArgument
}

// writeRPCProblem answers a request of gRPC or Connect with a problem in its protocol.
func writeRPCProblem(w http.ResponseWriter, r *http.Request, docsURL string, p Problem) {
	code := codeOf(p)
	text := p.Title + " (" + docsURL + "#" + p.Name + ")"
	h := w.Header()
	clearContent(h)
	if p.RetryAfter > 0 {
		h.Set("Retry-After", retryAfterOf(p))
		h.Set("Grpc-Retry-Pushback-Ms", strconv.FormatInt(p.RetryAfter.Milliseconds(), 10))
	}
	said, err := json.Marshal(map[string]any{"code": rpcCodes[code].name, "message": text})
	if err != nil {
		panic(err) // strings have a JSON form
	}
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

// rpcStatus returns the HTTP status that an answer of gRPC or Connect is treated by; ok
// is false for any other answer, and for a failure of HTTP itself. whole says whether the
// body is all there.
func rpcStatus(status int, header, trailer func(name string) string, contentType string, body []byte, whole bool) (int, bool) {
	if status != http.StatusOK {
		return 0, false
	}
	h := http.Header{"Content-Type": {contentType}}
	switch protocolOf(h) {
	case grpc:
		code := trailer("Grpc-Status")
		if code == "" {
			code = header("Grpc-Status")
		}
		return statusOfCode(code), true
	case grpcWeb:
		if code := header("Grpc-Status"); code != "" {
			return statusOfCode(code), true
		}
		if !whole {
			return 0, false
		}
		if strings.HasPrefix(strings.ToLower(contentType), "application/grpc-web-text") {
			body = decodeText(body)
		}
		fields, err := lastFrame(body, webTrailer, header("Grpc-Encoding"))
		if err != nil {
			return http.StatusOK, true
		}
		for line := range strings.SplitSeq(string(fields), "\n") {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(strings.TrimSpace(name), "grpc-status") {
				return statusOfCode(strings.TrimSpace(value)), true
			}
		}
		return http.StatusInternalServerError, true
	case connectStream:
		if !whole {
			return 0, false
		}
		var end struct {
			Error *struct{ Code string }
		}
		text, err := lastFrame(body, connectEnd, header("Connect-Content-Encoding"))
		if err != nil {
			return http.StatusOK, true
		}
		if json.Unmarshal(text, &end) != nil {
			return http.StatusInternalServerError, true
		}
		if end.Error == nil {
			return http.StatusOK, true
		}
		return statusOfName(end.Error.Code), true
	}
	return 0, false
}

// statusOfCode returns the HTTP status for a code of gRPC; one that makes no sense, or is
// missing, is a failure.
func statusOfCode(code string) int {
	if n, err := strconv.Atoi(code); err == nil && n >= 0 && n < len(rpcCodes) {
		return rpcCodes[n].status
	}
	return http.StatusInternalServerError
}

// statusOfName is statusOfCode for a code by the name that Connect has for it.
func statusOfName(name string) int {
	for _, c := range rpcCodes {
		if c.name == name {
			return c.status
		}
	}
	return http.StatusInternalServerError
}

// connectStatus returns the HTTP status for the error of Connect that a body has; ok is
// false if it has none. The HTTP status of the answer cannot stand for it: that of
// ALREADY_EXISTS is the one of ABORTED, and that of CANCELED is below 500.
func connectStatus(encoding string, body []byte) (status int, ok bool) {
	text, err := decompressed(encoding, bytes.NewReader(body))
	if err != nil {
		return 0, false
	}
	var failure struct{ Code string }
	if json.Unmarshal(text, &failure) != nil || failure.Code == "" {
		return 0, false
	}
	return statusOfName(failure.Code), true
}

// lastFrame returns the content of the frame with the flag; nil when there is none. The
// error says that it is compressed in a way that cannot be undone: such an answer is kept,
// because a failure that is replayed does less harm than a success that runs again.
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
			return decompressed(encoding, bytes.NewReader(content))
		}
	}
	return nil, nil
}

// decodeText decodes base64 that was written piece by piece, each with its own padding.
func decodeText(text []byte) (out []byte) {
	text = bytes.TrimSpace(text)
	for i := 0; i+4 <= len(text); i += 4 {
		piece := make([]byte, 3)
		n, err := base64.StdEncoding.Decode(piece, text[i:i+4])
		if err != nil {
			return out
		}
		out = append(out, piece[:n]...)
	}
	return out
}

// firstMessageLimit is how long a gRPC request may take to end after its first message.
// One that takes longer streams: it waits for answers before it goes on.
const firstMessageLimit = 5 * time.Second

// unaryReader is the body of a gRPC request, which has to end soon after its first message.
type unaryReader struct {
	timedReader
	head [5]byte
	n    int // bytes of head
	read int64
	end  time.Time // by when; zero until the first message is there
}

// Read reads from the body.
func (r *unaryReader) Read(p []byte) (int, error) {
	if r.begun() {
		if r.end.IsZero() {
			r.end = time.Now().Add(firstMessageLimit)
		}
		r.silence = min(r.silence, time.Until(r.end))
	}
	n, err := r.timedReader.Read(p)
	r.n += copy(r.head[r.n:], p[:n])
	r.read += int64(n)
	return n, err
}

// begun reports whether the first message is there.
func (r *unaryReader) begun() bool {
	return r.n == len(r.head) && r.read >= int64(len(r.head))+int64(binary.BigEndian.Uint32(r.head[1:]))
}
