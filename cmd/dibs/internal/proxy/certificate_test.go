package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// pair is the files of a certificate and its key.
type pair struct{ cert, key string }

func newPair(t *testing.T) pair {
	dir := t.TempDir()
	return pair{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
}

// flags returns the flags of a proxy with the certificate.
func (p pair) flags(more ...string) []string {
	return append([]string{"--tls-cert", p.cert, "--tls-key", p.key}, more...)
}

// renew replaces the files by a new certificate with the serial number.
func (p pair) renew(t *testing.T, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	testkit.Must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	testkit.Must(t, err)
	replace(t, p.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	replace(t, p.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// replace puts a new file in the place of another one, so that its state changes however
// coarse the clock of the filesystem is.
func replace(t *testing.T, name string, text []byte) {
	t.Helper()
	testkit.Must(t, os.WriteFile(name+".new", text, 0o600))
	testkit.Must(t, os.Rename(name+".new", name))
}

// browser returns a client that accepts any certificate, and opens a connection for each
// request.
func browser(http2 bool) *http.Client {
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true, Protocols: new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetHTTP2(http2)
	return &http.Client{Transport: transport}
}

// post sends a guarded request over HTTPS.
func (r *running) post(c *http.Client, key string) (*http.Response, string, error) {
	req, err := http.NewRequest("POST", strings.Replace(r.url, "http:", "https:", 1), strings.NewReader("a"))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Idempotency-Key", key)
	res, err := c.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res, string(body), err
}

// TestTLS: over HTTPS a request is guarded, and X-Forwarded-Proto is https. The admin address
// has TLS only with admin-tls.
func TestTLS(t *testing.T) {
	up := origin(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Forwarded-Proto"))
	})
	files := newPair(t)
	files.renew(t, 1)
	p := start(t, up, "", files.flags("--forwarded")...)
	for version, client := range map[int]*http.Client{1: browser(false), 2: browser(true)} {
		for i := range 2 {
			res, body, err := p.post(client, fmt.Sprint(version))
			testkit.Must(t, err)
			if replayed := res.Header.Get("Idempotent-Replayed") == "true"; res.StatusCode != 200 || body != "https" || res.ProtoMajor != version || replayed != (i == 1) {
				t.Errorf("request %d over HTTP/%d: %s %d %q, replayed %v", i, version, res.Proto, res.StatusCode, body, replayed)
			}
		}
	}
	secure := start(t, up, "", files.flags("--admin=127.0.0.1:0", "--admin-tls")...)
	for _, url := range []string{p.admin, strings.Replace(secure.admin, "http:", "https:", 1)} {
		res, err := browser(false).Get(url + "/healthz")
		testkit.Must(t, err)
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("%s: %d", url, res.StatusCode)
		}
	}
}

// TestCertificateChanges: connections after a change get the new certificate. While the new
// files are wrong they get the old one, and the log says so once.
func TestCertificateChanges(t *testing.T) {
	files := newPair(t)
	files.renew(t, 1)
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {}), "", files.flags()...)
	serial := func(want int64) {
		t.Helper()
		res, _, err := p.post(browser(false), "k")
		testkit.Must(t, err)
		if got := res.TLS.PeerCertificates[0].SerialNumber.Int64(); got != want {
			t.Errorf("the certificate is number %d; want %d", got, want)
		}
	}
	serial(1)
	files.renew(t, 2)
	serial(2)
	const line = "the new certificate is wrong"
	for i, damage := range []func(){
		func() { replace(t, files.cert, []byte("nonsense")) },
		func() { os.Remove(files.key) },
	} {
		damage()
		serial(2)
		serial(2)
		if n := strings.Count(p.logs.String(), line); n != i+1 {
			t.Errorf("the log has %q %d times; want %d", line, n, i+1)
		}
	}
	files.renew(t, 3)
	serial(3)
}

// TestCertificateChangesUnderLoad: no request is lost while certificates change.
func TestCertificateChangesUnderLoad(t *testing.T) {
	files := newPair(t)
	files.renew(t, 1)
	var runs atomic.Int64
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) { runs.Add(1) }), "", files.flags("--access-log=false")...)
	var sent atomic.Int64
	var changed atomic.Bool
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			c := browser(false)
			for !changed.Load() {
				n := sent.Add(1)
				if res, _, err := p.post(c, fmt.Sprint("k", n)); err != nil || res.StatusCode != 200 {
					t.Errorf("request %d: %v %v", n, res, err)
				}
			}
		})
	}
	for i := range 20 {
		for seen := sent.Load(); sent.Load() < seen+5 && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
		files.renew(t, int64(i+2))
	}
	changed.Store(true)
	clients.Wait()
	if runs.Load() != sent.Load() {
		t.Errorf("%d requests ran %d times", sent.Load(), runs.Load())
	}
}

// TestCertificateRefused: the proxy does not start with a certificate that it cannot use.
func TestCertificateRefused(t *testing.T) {
	good, other := newPair(t), newPair(t)
	good.renew(t, 1)
	other.renew(t, 2)
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--tls-cert", good.cert}, "tls-cert: it needs tls-key"},
		{[]string{"--tls-key", good.key}, "tls-key: it needs tls-cert"},
		{[]string{"--admin-tls"}, "DIBS_PROXY_ADMIN_TLS: it needs tls-cert and tls-key"},
		{pair{good.cert, other.key}.flags(), "does not match"},
		{pair{good.key, good.cert}.flags(), "tls-cert: the certificate "},
		{pair{good.cert + "x", good.key}.flags(), "there is no file"},
	} {
		if _, err := load(t, "", append(test.flags, "--upstream=http://x")...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v; want %q", test.flags, err, test.want)
		}
	}
}
