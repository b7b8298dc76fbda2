//go:build unix

package upstream

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// TestHTTP2SeenOnce: over HTTP/2 as well, whatever the origin resets the stream
// with.
func TestHTTP2SeenOnce(t *testing.T) {
	for _, scheme := range []string{"https", "h2c"} {
		for _, body := range []string{"", "amount=7"} {
			t.Run(scheme+" "+body, func(t *testing.T) {
				var seen atomic.Int64
				origin := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.ProtoMajor != 2 {
						t.Errorf("the origin was spoken to in %s", r.Proto)
					}
					io.Copy(io.Discard, r.Body)
					if r.Method == "GET" {
						return
					}
					seen.Add(1)
					panic(http.ErrAbortHandler)
				}))
				tr := startHTTP2(t, origin, scheme)
				if status, _, err := roundTrip(tr, request(t, tr, "GET", "")); status != 200 {
					t.Fatal(err)
				}
				_, _, err := roundTrip(tr, request(t, tr, "POST", body))
				if failed, ok := errors.AsType[*Error](err); !ok || failed.Kind != HungUp {
					t.Errorf("the error is %v", err)
				}
				if n := seen.Load(); n != 1 {
					t.Errorf("the origin saw the request %d times", n)
				}
			})
		}
	}
}

// startHTTP2 starts an origin that speaks HTTP/2 and returns a transport to it.
func startHTTP2(t *testing.T, origin *httptest.Server, scheme string) *Transport {
	t.Helper()
	t.Cleanup(origin.Close)
	if scheme == "h2c" {
		origin.Config.Protocols = new(http.Protocols)
		origin.Config.Protocols.SetHTTP1(true)
		origin.Config.Protocols.SetUnencryptedHTTP2(true)
		origin.Start()
		return newTransport(t, "h2c://"+origin.Listener.Addr().String(), nil)
	}
	origin.EnableHTTP2 = true
	origin.StartTLS()
	tls := origin.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	tls.ServerName = "example.com"
	return newTransport(t, origin.URL, &Options{TLS: tls})
}

// TestUpgradeIsHTTP1: a request for another protocol goes out in HTTP/1, which alone has
// such, also to an origin that speaks HTTP/2 otherwise.
func TestUpgradeIsHTTP1(t *testing.T) {
	for _, scheme := range []string{"https", "h2c"} {
		t.Run(scheme, func(t *testing.T) {
			origin := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Upgrade") == "" {
					io.WriteString(w, r.Proto)
					return
				}
				c, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Errorf("%s: %v", r.Proto, err)
					return
				}
				defer c.Close()
				io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				io.Copy(c, rw)
			}))
			tr := startHTTP2(t, origin, scheme)
			if status, body, err := roundTrip(tr, request(t, tr, "GET", "")); status != 200 || body != "HTTP/2.0" {
				t.Fatalf("without an upgrade: %d %q %v", status, body, err)
			}
			for _, protocol := range []string{"echo", "websocket"} {
				req := request(t, tr, "GET", "")
				req.Header.Set("Connection", "Upgrade")
				req.Header.Set("Upgrade", protocol)
				res, err := tr.RoundTrip(req)
				if err != nil {
					t.Fatalf("%s: %v", protocol, err)
				}
				defer res.Body.Close()
				rw, ok := res.Body.(io.ReadWriter)
				if res.StatusCode != 101 || !ok {
					t.Fatalf("%s: the origin answered %d", protocol, res.StatusCode)
				}
				got := make([]byte, 5)
				if _, err := io.WriteString(rw, "there"); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(rw, got); err != nil || string(got) != "there" {
					t.Errorf("%s: %q came back, %v", protocol, got, err)
				}
			}
		})
	}
}
