package serve

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/httpstore"
)

// TestTLS: with a certificate a TCP listener serves HTTPS alone, and a Unix socket stays plain.
func TestTLS(t *testing.T) {
	model := httptest.NewTLSServer(http.NotFoundHandler())
	defer model.Close()
	dir := t.TempDir()
	files := [2]string{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	pair := model.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	testkit.Must(t, err)
	for i, block := range []pem.Block{{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, {Type: "PRIVATE KEY", Bytes: key}} {
		testkit.Must(t, os.WriteFile(files[i], pem.EncodeToMemory(&block), 0o600))
	}
	s, err := New(Config{
		TLSCert: files[0], TLSKey: files[1], MaxBody: 1 << 20, MaxBodyMemory: 1 << 24, MaxCalls: 10,
		MaxWaiters: 10, StoreTimeout: time.Second, Drain: time.Second,
	}, inMemory(t), Hooks{Version: "test", Metrics: func(*string) http.Handler { return http.NotFoundHandler() }, Log: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	tcp := testkit.Listen(t)
	socket, err := net.Listen("unix", filepath.Join(dir, "s"))
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, []net.Listener{tcp, socket}, nil) }()
	for url, want := range map[string]string{
		"https://" + tcp.Addr().String():      "",
		"http+unix:" + socket.Addr().String(): "",
		"http://" + tcp.Addr().String():       "write https instead of http",
	} {
		var o *httpstore.Options
		if strings.HasPrefix(url, "https:") {
			o = &httpstore.Options{Client: model.Client()}
		}
		over, err := httpstore.Open(url, o)
		testkit.Must(t, err)
		_, err = over.Version(t.Context())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", url, err, want)
		}
		over.Close()
	}
	stop()
	testkit.Check(t, <-ended)
}
