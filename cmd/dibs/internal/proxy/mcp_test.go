package proxy

import (
	"encoding/json"
	"fmt"
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
