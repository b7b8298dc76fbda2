package proxy

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRequestID: the log has the client's ID if it is one short, visible value, or an ID that the
// proxy makes. The origin gets the field as the client sent it.
func TestRequestID(t *testing.T) {
	long := strings.Repeat("x", maxID)
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
	}
	for i, test := range tests {
		res, _ := send(t, p.url, fmt.Sprintf("GET /%d HTTP/1.1\r\nHost: a\r\n%s\r\n", i, test.fields))
		if got := o.last(); len(res.Header["X-Request-Id"]) != 0 || strings.Count(got, "X-Request-Id") != strings.Count(test.fields, "X-Request-Id") || !strings.Contains(got, test.fields) {
			t.Errorf("%q: the origin got %q, and the client %v", test.fields, got, res.Header)
		}
	}
	p.stop()
	logged := map[string]string{}
	for _, l := range linesOf(t, p.logs.String(), "request") {
		logged[l["path"].(string)] = l["request_id"].(string)
	}
	for i, test := range tests {
		id, want := logged[fmt.Sprint("/", i)], test.want
		if want != "" && id != want || want == "" && (len(id) < 16 || strings.Contains(test.fields, id)) {
			t.Errorf("%q: the log has %q", test.fields, id)
		}
	}
}

// TestStatusOfRefusedUpgrade: an upgrade for which there is no connection has the status of its
// refusal.
func TestStatusOfRefusedUpgrade(t *testing.T) {
	x := newExchange(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
	if _, _, err := x.Hijack(); err == nil {
		t.Error("there is a connection")
	}
	if x.WriteHeader(502); x.status != 502 {
		t.Errorf("the status is %d; want 502", x.status)
	}
}
