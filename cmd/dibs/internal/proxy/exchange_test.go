package proxy

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestRequestID: the client's ID is used if it is one short, visible value. Otherwise the
// proxy makes one. The origin, the client and the log get the same.
func TestRequestID(t *testing.T) {
	long := strings.Repeat("x", maxID)
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := start(t, o.url, "", "--log-format=json")
	tests := []struct{ fields, want string }{
		{"X-Request-Id: abc-1\r\n", "abc-1"},
		{"x-request-id: " + long + "\r\n", long},
		{"Connection: X-Request-Id\r\nX-Request-Id: hop\r\n", "hop"},
		{"", ""},
		{"X-Request-Id:\r\n", ""},
		{"X-Request-Id: " + long + "x\r\n", ""},
		{"X-Request-Id: a b\r\n", ""},
		{"X-Request-Id: caf\xe9\r\n", ""},
		{"X-Request-Id: a\r\nX-Request-Id: b\r\n", ""},
		{"X_Request_Id: forged\r\n", ""},
	}
	var ids []string
	for _, test := range tests {
		res, _ := send(t, p.url, "GET / HTTP/1.1\r\nHost: a\r\n"+test.fields+"\r\n")
		id := res.Header.Get("X-Request-Id")
		ids = append(ids, id)
		if len(res.Header["X-Request-Id"]) != 1 || test.want != "" && id != test.want || test.want == "" && (len(id) < 16 || strings.Contains(test.fields, id)) {
			t.Errorf("%q: the client got %q", test.fields, res.Header["X-Request-Id"])
		}
		if got := o.last(); strings.Count(strings.ToLower(got), "request-id: ") != 1 || !strings.Contains(got, "\r\nX-Request-Id: "+id+"\r\n") || strings.Contains(got, "forged") {
			t.Errorf("%q: the origin got %q; the client got %q", test.fields, got, id)
		}
	}
	p.stop()
	var logged []string
	for _, l := range linesOf(t, p.logs.String(), "request") {
		logged = append(logged, l["request_id"].(string))
	}
	slices.Sort(ids)
	if slices.Sort(logged); !slices.Equal(logged, ids) {
		t.Errorf("the log has %q; the clients got %q", logged, ids)
	}
}

// TestRequestIDOfRefusal: a refusal has the request's ID, because no origin can set one.
func TestRequestIDOfRefusal(t *testing.T) {
	p := start(t, "http://127.0.0.1:1", "", "--require-key")
	for _, fields := range []string{"", "Idempotency-Key: k\r\n"} {
		res, _ := send(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\n"+fields+"Content-Length: 1\r\n\r\na")
		if res.StatusCode < 400 || res.Header.Get("X-Request-Id") != "mine" {
			t.Errorf("%q: %d with %q", fields, res.StatusCode, res.Header["X-Request-Id"])
		}
	}
}

// TestRequestIDIsNotStored: a retry with another ID is replayed, with its own ID. The first
// answer has the origin's ID, if the origin sets one.
func TestRequestIDIsNotStored(t *testing.T) {
	p := start(t, origin(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Request-Id", "origin") }), "")
	for _, test := range []struct{ id, replayed, want string }{{"one", "", "origin"}, {"two", "true", "two"}} {
		res, _ := send(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nX-Request-Id: "+test.id+"\r\nContent-Length: 1\r\n\r\na")
		if got := res.Header["X-Request-Id"]; res.Header.Get("Idempotent-Replayed") != test.replayed || len(got) != 1 || got[0] != test.want {
			t.Errorf("%s: the answer has %v", test.id, res.Header)
		}
	}
}

// TestRequestIDIsNoKey: an ID that the proxy made is not taken for a key of the client.
func TestRequestIDIsNoKey(t *testing.T) {
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {}), "", "--key=header:X-Request-Id", "--require-key")
	if res, body := send(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na"); res.StatusCode != 400 || !strings.Contains(body, "key-required") {
		t.Errorf("%d %q; want 400 and key-required", res.StatusCode, body)
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
