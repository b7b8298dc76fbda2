package httpstore

import (
	"bufio"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestStrangeServer: if another server than dibs serve is at the address, each call's error asks for
// that, and names what answered as far as it is known.
func TestStrangeServer(t *testing.T) {
	web := func(write func(http.ResponseWriter)) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w) }))
		t.Cleanup(s.Close)
		return s.URL
	}
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for name, test := range map[string]struct {
		url   string
		wants []string
	}{
		"closes, as Redis":        {raw(t, ""), []string{"closed the connection", "is it dibs serve?"}},
		"greets, as MySQL":        {raw(t, "J\x00\x00\x00\n8.4.3\x00"), []string{"does not speak HTTP", "is it dibs serve?"}},
		"greets, as SSH":          {raw(t, "SSH-2.0-OpenSSH_9.6\r\n"), []string{"does not speak HTTP", "OpenSSH_9.6", "is it dibs serve?"}},
		"has no such path":        {web(func(w http.ResponseWriter) { w.Header().Set("Server", "Caddy"); w.WriteHeader(404) }), []string{"not dibs serve", `404 Not Found of the server "Caddy"`, "the port"}},
		"sends elsewhere":         {web(func(w http.ResponseWriter) { w.Header().Set("Location", "/login"); w.WriteHeader(302) }), []string{"not dibs serve", "302 Found", "the port"}},
		"has a page on each path": {web(func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<!doctype html><title>App</title>") }), []string{"not dibs serve", "200 OK", "the port"}},
		"http for https":          {strings.Replace(secure.URL, "https:", "http:", 1), []string{"write https instead of http"}},
		"https for http":          {strings.Replace(web(func(http.ResponseWriter) {}), "http:", "https:", 1), []string{"does not speak TLS", "write http instead of https"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(test.url, nil)
			testkit.Must(t, err)
			defer s.Close()
			check := func(what string, err error) {
				t.Helper()
				for _, want := range test.wants {
					if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
						t.Errorf("%s: the error is %v; want %q in it", what, err, want)
					}
				}
			}
			_, err = s.Version(t.Context())
			check("the version", err)
			for _, err := range s.List(t.Context(), store.Query{}) {
				check("the list", err)
			}
			_, err = s.Forget(t.Context(), store.Key{Name: "k"}, "")
			check("an order", err)
			check("claims", s.Claim(t.Context(), []store.Claim{{Key: store.Key{Name: "k"}, Token: store.Token{1}, TTL: 1e9, Permits: 1, Weight: 1}}, make([]store.Answer, 1)))
		})
	}
}

// raw returns the URL of a server that writes a greeting, reads a line and closes the connection.
func raw(t *testing.T, greeting string) string {
	l := testkit.Listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func(conn net.Conn) {
				defer conn.Close()
				_, _ = bufio.NewReader(conn).ReadString('\n')
				_, _ = io.WriteString(conn, greeting)
			}(conn)
		}
	}()
	return "http://" + l.Addr().String()
}
