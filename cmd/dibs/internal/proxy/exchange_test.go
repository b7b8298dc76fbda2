package proxy

import (
	"fmt"
	"strings"
	"testing"
)

// TestRequestID: the log and the origin have the client's ID if it is one short, visible value, or
// an ID that the proxy makes. That holds with a guard and without, and the client gets no field.
func TestRequestID(t *testing.T) {
	long := strings.Repeat("x", 128)
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := start(t, o.url, "", "--log-format=json")
	tests := []struct{ fields, want string }{
		{"X-Request-Id: abc-1\r\n", "abc-1"},
		{"X-Request-Id: " + long + "\r\n", long},
		{"", ""},
		{"X-Request-Id: \r\n", ""},
		{"X-Request-Id: " + long + "x\r\n", ""},
		{"X-Request-Id: a b\r\n", ""},
		{"X-Request-Id: caf\xe9\r\n", ""},
		{"X-Request-Id: a\r\nX-Request-Id: b\r\n", ""},
		{"Connection: X-Request-Id\r\nX-Request-Id: hop\r\n", "hop"},
		{"X_Request_Id: forged\r\n", ""},
		{"Connection: Upgrade\r\nUpgrade: websocket\r\n", ""},
	}
	saw := map[string]string{}
	for i, test := range tests {
		for _, key := range []string{"", "Idempotency-Key: k\r\nContent-Length: 0\r\n"} {
			path := fmt.Sprintf("/%d/%d", i, len(key))
			res, _ := send(t, p.url, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a%d\r\n%s%s\r\n", path, i, test.fields, key))
			_, id, _ := strings.Cut(o.last(), "X-Request-Id: ")
			saw[path], _, _ = strings.Cut(id, "\r\n")
			if len(res.Header["X-Request-Id"]) != 0 || strings.Count(strings.ToLower(o.last()), "request") != 1 {
				t.Errorf("%q: the origin got %q, and the client %v", test.fields, o.last(), res.Header)
			}
		}
	}
	p.stop()
	logged := map[string]string{}
	for _, l := range linesOf(t, p.logs.String(), "request") {
		logged[l["path"].(string)] = l["request_id"].(string)
	}
	for i, test := range tests {
		for path, got := range saw {
			if !strings.HasPrefix(path, fmt.Sprintf("/%d/", i)) {
				continue
			}
			id, want := logged[path], test.want
			if got != id || want != "" && id != want || want == "" && (len(id) < 16 || strings.Contains(test.fields, id)) {
				t.Errorf("%s %q: the log has %q, and the origin got %q", path, test.fields, id, got)
			}
		}
	}
}
