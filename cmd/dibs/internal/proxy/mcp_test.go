package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// post posts a message and returns the answer, whose body is not read yet.
func post(t *testing.T, url, message string) *http.Response {
	t.Helper()
	r := testkit.Request(t.Context(), t, http.MethodPost, url, strings.NewReader(message))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(r)
	testkit.Must(t, err)
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// TestMCPStreams: an event stream passes part by part, guarded or not. A retry of the guarded one gets
// the response with its own id.
func TestMCPStreams(t *testing.T) {
	const progress, response = "data: {\"method\":\"notifications/progress\"}\n\n", "data: {\"id\":1,\"result\":{}}\n\n"
	seen := make(chan struct{})
	up := origin(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, progress)
		_ = http.NewResponseController(w).Flush()
		<-seen
		fmt.Fprint(w, response)
	})
	p := start(t, up, "", "--for=mcp")
	call := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":{%q:"k"}}}`, idempotency.MCPKey)
	for _, message := range []string{call, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}`, `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen"}`} {
		res := post(t, p.url, message)
		part := make([]byte, len(progress))
		if _, err := io.ReadFull(res.Body, part); err != nil || string(part) != progress {
			t.Fatalf("%s: %q, %v", message, part, err)
		}
		go func() { seen <- struct{}{} }()
		if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != response {
			t.Errorf("%s: %q, %v", message, rest, err)
		}
	}
	res := post(t, p.url, strings.Replace(call, `"id":1`, `"id":"b"`, 1))
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != `{"id":"b","result":{}}` || res.Header.Get("Content-Type") != "application/json" {
		t.Errorf("the retry is answered %q, %v", body, err)
	}
}

// TestMCPFailure: an origin that cannot be reached is an error of JSON-RPC with the request's id,
// guarded or not.
func TestMCPFailure(t *testing.T) {
	l := testkit.Listen(t)
	l.Close()
	p := start(t, "http://"+l.Addr().String(), "", "--for=mcp", "--scope=none")
	for i, message := range []string{
		`{"jsonrpc":"2.0","id":"a","method":"tools/list"}`,
		fmt.Sprintf(`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"a","_meta":{%q:"k"}}}`, idempotency.MCPKey),
	} {
		res := post(t, p.url, message)
		var m struct {
			ID    string
			Error struct {
				Code int
				Data struct{ Type string }
			}
		}
		testkit.Must(t, json.NewDecoder(res.Body).Decode(&m))
		if res.StatusCode != 502 || m.ID != "a" || m.Error.Code != 502 || !strings.HasSuffix(m.Error.Data.Type, "#origin-unreachable") {
			t.Errorf("%d: answered %d %+v", i, res.StatusCode, m)
		}
	}
}
