//go:build unix

package command_test

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestHealthcheck: it exits with 0 only if the proxy says that it is ready, however the address
// is written, and never asks a proxy of the environment.
func TestHealthcheck(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.env = []string{"HTTP_PROXY=http://127.0.0.1:1", "http_proxy=http://127.0.0.1:1"}
	admin := servertest.Addr(t)
	_, port, _ := strings.Cut(admin, ":")
	b.says(t, 1, "", "it does not answer", "healthcheck", admin)
	p := b.start(t, "proxy", "--listen", "127.0.0.1:0", "--admin", admin, "--upstream", "http://127.0.0.1:1")
	waitFor(t, p, "http://"+admin+"/readyz")
	for _, addr := range []string{admin, ":" + port, "0.0.0.0:" + port, "localhost:" + port} {
		b.says(t, 0, "ready\n", "", "healthcheck", addr)
	}
	b.env = append(b.env, "DIBS_PROXY_ADMIN="+admin)
	b.says(t, 0, "ready\n", "", "healthcheck")
	b.says(t, 1, "", "it does not answer", "healthcheck", "https://"+admin)

	answers := func(h http.HandlerFunc) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	b.says(t, 1, "", "it is not ready: 503 Service Unavailable: the store does not answer", "healthcheck", answers(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
	}))
	b.says(t, 1, "", "it is not ready: 404 Not Found", "healthcheck", answers(http.NotFound))
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ready\n")) }))
	t.Cleanup(secure.Close)
	b.says(t, 0, "ready\n", "", "healthcheck", secure.URL)
	b.env = []string{"DIBS_PROXY_ADMIN_TLS=true"}
	b.says(t, 0, "ready\n", "", "healthcheck", strings.TrimPrefix(secure.URL, "https://"))

	b.env = nil
	b.says(t, 64, "", "no address is named; name the proxy's --admin", "healthcheck")
	for _, addr := range []string{"9090", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:x", "127.0.0.1:9090/", "ftp://127.0.0.1:9090", "https://127.0.0.1", "unix:"} {
		b.says(t, 64, "", "is not HOST:PORT", "healthcheck", addr)
	}
}

// TestHealthcheckOfServe: a server is asked without a credential, over TCP, TLS or a Unix socket.
func TestHealthcheckOfServe(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir, err := os.MkdirTemp("", "dibs") // short, because the path of a socket must be
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	b.says(t, 64, "", "--listen is unix: without a path", "serve", "--listen", "unix:")
	socket := "unix:" + dir + "/s"
	b.says(t, 1, "", "it does not answer", "healthcheck", socket)
	b.write(t, "tokens", fmt.Sprintf("shop %x shop use\n", sha256.Sum256([]byte(secret))))
	b.certificate(t)
	listen := servertest.Addr(t)
	b.start(t, "serve", "--listen", listen, "--listen", socket, "--tokens", "tokens", "--tls-cert", "tls.crt", "--tls-key", "tls.key").awaitListening(t)
	b.says(t, 0, "ready\n", "", "healthcheck", socket)
	b.says(t, 0, "ready\n", "", "healthcheck", "https://"+listen)
	b.env = []string{"DIBS_PROXY_ADMIN_TLS=true"}
	b.says(t, 0, "ready\n", "", "healthcheck", socket)
}

// certificate writes tls.crt and tls.key, for 127.0.0.1.
func (b *bench) certificate(t *testing.T) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pair := s.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	testkit.Must(t, err)
	b.write(t, "tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})))
	b.write(t, "tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
}

// TestProxyNeedsTemporaryFiles: a proxy that could not keep a long body does not start, and says
// why. The doctor finds it before.
func TestProxyNeedsTemporaryFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.write(t, "proxy.yaml", "upstream: http://127.0.0.1:1\nadmin: 127.0.0.1:1\nlisten: 127.0.0.1:0\n")
	b.inspector(t)
	b.env = []string{"TMPDIR=" + b.path("missing")}
	const why = "max-body: bodies of more than 1MiB are kept in temporary files, and none can be made"
	b.says(t, 64, "", why, "proxy", "--config", "proxy.yaml")
	b.says(t, 1, "dangerous  temporary: The proxy does not start: "+why, "", "doctor", "--config", "proxy.yaml")
}
