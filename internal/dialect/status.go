package dialect

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
)

// rpcStatus returns the HTTP status that stands for the status of gRPC or Connect. ok is false for
// any other answer, and for a failure of HTTP itself.
func rpcStatus(a *Answer) (rpc int, ok bool) {
	protocol, header := protocolOf(a.Header), a.Header
	if a.Status != http.StatusOK || protocol != grpc && protocol != grpcWeb && protocol != connectStream {
		return 0, false
	}
	code := header.Get("Grpc-Status")
	switch {
	case protocol == grpc:
		return statusOfCode(cmp.Or(a.Trailer.Get("Grpc-Status"), code)), true
	case protocol == grpcWeb && code != "":
		return statusOfCode(code), true
	case a.Cut:
		return 0, false
	case protocol == grpcWeb:
		return webStatus(header, a.Body), true
	}
	var end struct {
		Error *struct{ Code string }
	}
	text, err := lastFrame(a.Body, connectEnd, header.Get("Connect-Content-Encoding"))
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
