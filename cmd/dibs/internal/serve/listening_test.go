package serve

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/httpstore"
	"github.com/dibs-go/dibs/stores/memstore"
)

// left returns what the store has.
func left(t *testing.T, s *memstore.Store) (keys []string) {
	t.Helper()
	for e, err := range s.List(t.Context(), store.Query{}) {
		testkit.Must(t, err)
		keys = append(keys, e.Key.Name)
	}
	return keys
}

// TestAClaimThatComesTooLate: if the body of a claim arrives after the claim's timeout_ms, the
// claim is not carried out.
func TestAClaimThatComesTooLate(t *testing.T) {
	for _, claims := range []string{
		`{"key":"a","token":TOKEN}`, `{"key":"a","token":TOKEN,"mode":"queue"}`, `{"key":"a","token":TOKEN,"mode":"reserve"}`,
		`{"key":"a","token":TOKEN},{"key":"b","token":TOKEN}`, // they do not go in one batch with others
	} {
		for _, rest := range []string{"", `,"wait_ms":60000`} {
			if rest != "" && !strings.Contains(claims, "queue") {
				continue
			}
			s := inMemory(t)
			r := start(t, s, nil)
			body := `{"claims":[` + strings.ReplaceAll(claims, "TOKEN", `"0123456789abcdef0123456789abcdef"`) + `]` + rest + `,"timeout_ms":%d}`
			late, more := io.Pipe()
			answer := make(chan *reply, 1)
			go func() {
				req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL+"/v1/claim", late)
				testkit.Check(t, err)
				req.Header.Set("Content-Type", "application/json")
				answer <- r.send(req)
			}()
			testkit.Eventually(t, "the server has the request", func() bool { return r.server.load.calls.Load() == 1 })
			began := time.Now()
			testkit.Eventually(t, "time passes", func() bool { return time.Since(began) > 2*time.Millisecond })
			_, err := fmt.Fprintf(more, body, 1)
			testkit.Must(t, err)
			more.Close()
			if got := testkit.Await(t, "the answer", answer); got.status != 503 || !strings.HasSuffix(got.Type, "#overdue") {
				t.Errorf("%s is answered with %d %s", body, got.status, got.text)
			}
			if keys := left(t, s); len(keys) > 0 {
				t.Errorf("%s leaves %v", body, keys)
			}
			if got := r.do("POST", "/v1/claim", "", fmt.Sprintf(body, time.Hour.Milliseconds())); rest == "" && got.status != 200 {
				t.Errorf("in time it is answered with %d %s", got.status, got.text)
			}
		}
	}
}

// TestAWaitThatLastsTooLong: a call that waits ends with its timeout_ms, and asks no more.
func TestAWaitThatLastsTooLong(t *testing.T) {
	r := start(t, inMemory(t), nil)
	r.claim(1, "}]")
	if got := r.claim(2, `,"mode":"queue"}],"wait_ms":60000,"timeout_ms":20`); got.status != 503 || !strings.HasSuffix(got.Type, "#overdue") {
		t.Errorf("it is answered with %d %s", got.status, got.text)
	}
}

// TestOneCallerOfABatchHasGone: its claim is not sent, and those of the others are answered.
func TestOneCallerOfABatchHasGone(t *testing.T) {
	s := inMemory(t)
	r := start(t, s, nil)
	ended, end := context.WithCancel(t.Context())
	end()
	ask := func(key string, x *exchange) question {
		return question{&store.Claim{Key: dibs.Key{Name: key}, Token: store.Token{1}, TTL: time.Hour, Permits: 1, Weight: 1}, x}
	}
	long := server.Exchange{Began: time.Now().Add(-time.Minute)}
	answers := make([]store.Answer, 6)
	testkit.Must(t, r.server.carry(t.Context(), []question{
		ask("a", &exchange{ctx: t.Context(), Exchange: long}),
		ask("late", &exchange{ctx: t.Context(), Exchange: long, timeout: time.Minute}),
		ask("b", &exchange{ctx: t.Context(), Exchange: long, timeout: time.Hour}),
		ask("gone", &exchange{ctx: ended, Exchange: long}),
		ask("clock", &exchange{ctx: t.Context(), Exchange: server.Exchange{Began: time.Unix(long.Began.Unix(), 0)}, timeout: 30 * time.Second}), // the monotonic clock stood
		ask("c", new(exchange)),
	}, answers))
	for i, want := range []error{nil, errOverdue, nil, errGone, errOverdue, nil} {
		if a := answers[i]; a.Err != want || want == nil && a.State != store.Granted {
			t.Errorf("the answer to claim %d is %+v", i, a)
		}
	}
	if keys := left(t, s); !slices.Equal(slices.Sorted(slices.Values(keys)), []string{"a", "b", "c"}) {
		t.Errorf("the store has %v", keys)
	}
}

// TestHungUp: the server sees that its peer has closed a connection, even if it has not read what came
// before that.
func TestHungUp(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems cannot say")
	}
	model := httptest.NewTLSServer(http.NotFoundHandler())
	defer model.Close()
	for _, network := range []string{"tcp", "unix", "tls"} {
		for _, unread := range []string{"", "POST / HTTP/1.1\r\n"} {
			var l net.Listener
			var err error
			if network == "unix" {
				l, err = net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			} else {
				l, err = net.Listen("tcp", "127.0.0.1:0")
			}
			testkit.Must(t, err)
			defer l.Close()
			client, err := net.Dial(l.Addr().Network(), l.Addr().String())
			testkit.Must(t, err)
			server, err := l.Accept()
			testkit.Must(t, err)
			defer server.Close()
			if network == "tls" {
				config := model.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
				config.ServerName = "example.com"
				client, server = tls.Client(client, config), tls.Server(server, model.TLS)
				done := make(chan error, 1)
				go func() { done <- client.(*tls.Conn).Handshake() }()
				testkit.Must(t, server.(*tls.Conn).Handshake())
				testkit.Must(t, <-done)
			}
			_, err = io.WriteString(client, unread)
			testkit.Must(t, err)
			if hungUp(server) {
				t.Errorf("%s with %q unread: the peer is there", network, unread)
			}
			client.Close()
			testkit.Eventually(t, fmt.Sprintf("%s with %q unread is hung up", network, unread), func() bool { return hungUp(server) })
			if got, err := bufio.NewReader(server).ReadString('\n'); unread != "" && (got != unread || err != nil) {
				t.Errorf("%s: what is read after it is %q, %v", network, got, err)
			}
		}
	}
}

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
