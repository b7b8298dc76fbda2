package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestAdmin: health and readiness are on the admin address only.
func TestAdmin(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\norigin")
	p := start(t, o.url, "")
	for url, want := range map[string]string{
		p.admin + "/healthz": "200 alive\n",
		p.admin + "/readyz":  "200 ready\n",
		p.url + "/healthz":   "200 origin",
		p.url + "/readyz":    "200 origin",
		p.admin + "/nothing": "404 there is nothing at this path\n",
	} {
		res, err := http.Get(url)
		testkit.Must(t, err)
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if got := fmt.Sprintf("%d %s", res.StatusCode, body); got != want {
			t.Errorf("%s: %q; want %q", url, got, want)
		}
	}
}

// TestUnguardedIsMeasured: unguarded requests are measured, even if the answer is cut off.
func TestUnguardedIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []idempotency.Event
		s := &Server{admin: &Admin{Observe: func(_ context.Context, e idempotency.Event) { events = append(events, e) }}}
		h := s.unguarded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			time.Sleep(time.Second)
			panic(http.ErrAbortHandler)
		}))
		func() {
			defer func() { _ = recover() }()
			r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
			h.ServeHTTP(newExchange(httptest.NewRecorder(), r), r)
		}()
		if len(events) != 1 || events[0].Kind != idempotency.EventUnguarded || events[0].Handler != time.Second {
			t.Errorf("%+v; want one event of 1 s", events)
		}
	})
}

// TestRoutes: the first route that matches serves the request.
func TestRoutes(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst")
	other := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond")
	p := start(t, o.url, `
routes:
  - {path: /pay/**, methods: [POST], require-key: true}
  - {path: /pay/free, methods: [PUT], guard: false}
  - {host: other.example.com, upstream: "`+other.url+`"}
`)
	tests := []struct{ request, want string }{
		{"POST /pay/a HTTP/1.1\r\nHost: a\r\n", "400"},
		{"POST /pay/%61 HTTP/1.1\r\nHost: a\r\n", "400"},
		{"POST /p%61y/a HTTP/1.1\r\nHost: a\r\n", "400"},
		{"POST /pay/a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: 1\r\n", "200 first"},
		{"POST /pay/a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: 1\r\n", "200 first replayed"},
		{"PATCH /pay/a HTTP/1.1\r\nHost: a\r\n", "200 first"},
		{"PUT /pay/free HTTP/1.1\r\nHost: a\r\nIdempotency-Key: 1\r\n", "200 first"},
		{"PUT /pay/free HTTP/1.1\r\nHost: a\r\nIdempotency-Key: 1\r\n", "200 first"},
		{"POST /x HTTP/1.1\r\nHost: Other.Example.com:8080\r\n", "200 second"},
		{"POST /x HTTP/1.1\r\nHost: a\r\n", "200 first"},
		{"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n", "405"},
	}
	for _, test := range tests {
		res, body := send(t, p.url, test.request+"\r\n")
		got := fmt.Sprint(res.StatusCode)
		if res.StatusCode == 200 {
			got += " " + body
		}
		if res.Header.Get("Idempotent-Replayed") != "" {
			got += " replayed"
		}
		if got != test.want {
			t.Errorf("%q: %s; want %s", test.request, got, test.want)
		}
	}
}

// TestReadyWithoutStore: while the store does not answer, a proxy is ready if it refuses no
// request because of that.
func TestReadyWithoutStore(t *testing.T) {
	const open = "on-store-failure: open\n"
	for text, want := range map[string]int{
		"":               503,
		open:             200,
		"guard: false\n": 200,
		open + "routes:\n  - {path: /a, on-store-failure: closed}\n": 503,
		open + "routes:\n  - {path: /a, guard: false}\n":             200,
	} {
		store, err := memstore.New(nil)
		testkit.Must(t, err)
		p := startOn(t, store, "http://127.0.0.1:1", text)
		testkit.Must(t, store.Close())
		res, err := http.Get(p.admin + "/readyz")
		testkit.Must(t, err)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%q: %d; want %d", text, res.StatusCode, want)
		}
	}
}
