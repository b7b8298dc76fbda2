package dialect

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// A grpcRequest is one of gRPC or gRPC-Web.
type grpcRequest struct {
	plain
	contentType string
}

// Refuse sends a status of gRPC. The answer is its trailer alone, which is sent as the header.
func (g grpcRequest) Refuse(w http.ResponseWriter, r Refusal) bool {
	h := w.Header()
	pushBack(h, r)
	h.Set("Content-Type", g.contentType)
	h.Set("Grpc-Status", strconv.Itoa(codeOf(r)))
	h.Set("Grpc-Message", strings.ReplaceAll(url.QueryEscape(r.Text), "+", "%20"))
	w.WriteHeader(http.StatusOK)
	return true
}

// pushBack says when a client of gRPC may try again.
func pushBack(h http.Header, r Refusal) {
	if r.RetryAfter > 0 {
		h.Set("Grpc-Retry-Pushback-Ms", strconv.FormatInt(r.RetryAfter.Milliseconds(), 10))
	}
}

// A connectRequest is one of Connect.
type connectRequest struct {
	plain
	stream      bool
	contentType string
}

// Refuse sends an error of Connect.
func (c connectRequest) Refuse(w http.ResponseWriter, r Refusal) bool {
	h := w.Header()
	pushBack(h, r)
	said, _ := json.Marshal(map[string]any{"code": rpcCodes[codeOf(r)].name, "message": r.Text}) // which cannot fail
	if c.stream {
		h.Set("Content-Type", c.contentType)
		w.WriteHeader(http.StatusOK)
		end := append([]byte(`{"error":`), append(said, '}')...)
		_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{connectEnd}, uint32(len(end))), end...))
		return true
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(said)))
	w.WriteHeader(r.Status)
	_, _ = w.Write(said)
	return true
}

// Listen returns what finds the error in an answer.
func (c connectRequest) Listen(int, http.Header, int64) Listener {
	if c.stream {
		return plainAnswer{}
	}
	return connectAnswer{}
}

// A connectAnswer is the answer to a unary request of Connect.
type connectAnswer struct{ plainAnswer }

// End returns the status of the error in the answer, or that of HTTP.
func (c connectAnswer) End(a Answer) Result {
	if a.Status >= 400 && !a.Cut {
		if status, ok := connectStatus(a.Header.Get("Content-Encoding"), a.Body); ok {
			return Result{Status: status}
		}
	}
	return c.plainAnswer.End(a)
}
