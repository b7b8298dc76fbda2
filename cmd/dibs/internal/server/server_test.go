package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestEveryListenerIsServed: a door without TLS serves plain HTTP on each of its listeners, and they all
// end when the server does.
func TestEveryListenerIsServed(t *testing.T) {
	s, err := New(&Options{Log: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	listeners := make([]net.Listener, 8)
	for i := range listeners {
		listeners[i] = testkit.Listen(t)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	life := Life{Times: func() (delay, drain time.Duration) { return 0, testkit.Limit }}
	door := Door{Server: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { WriteText(w, http.StatusOK, "here") })}, Listeners: listeners}
	go func() { ended <- s.Serve(ctx, life, nil, door) }()
	for _, l := range listeners {
		resp, err := (&http.Client{Timeout: testkit.Limit}).Get("http://" + l.Addr().String())
		testkit.Must(t, err)
		text, err := io.ReadAll(resp.Body)
		testkit.Must(t, err)
		resp.Body.Close()
		if string(text) != "here\n" {
			t.Errorf("%s is answered %q", l.Addr(), text)
		}
	}
	stop()
	testkit.Check(t, testkit.Await(t, "the end of the server", ended))
	for _, l := range listeners {
		if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
			conn.Close()
			t.Errorf("%s still listens", l.Addr())
		}
	}
}

// TestNamesOfTheServer: the names by which no other site can be reached.
func TestNamesOfTheServer(t *testing.T) {
	for host, own := range map[string]bool{
		"localhost": true, "LOCALHOST:1": true, "localhost.": true, "127.0.0.1": true, "10.0.0.1:80": true, "[::1]:80": true, "proxy": true,
		"a.b.svc": true, "a.b.svc.cluster.local:9090": true, "x.INTERNAL": true, "": false, ".": false, "a.example": false, "a.example.:80": false, "internal.example": false,
		"10.0.0.1.example": false, "evilsvc.example": false, "a.notlocal": false,
	} {
		if isOwnName(host) != own {
			t.Errorf("%q is a name of the server: %v; want %v", host, !own, own)
		}
	}
}

// TestWhoReadsWhichMetrics: a credential of one namespace reads its own. Where no credential is needed, and
// where the program has one namespace, all are read, but not with a credential of another one.
func TestWhoReadsWhichMetrics(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	var lines []byte
	for _, name := range []string{"shop", "bank", "*"} {
		lines = fmt.Appendf(lines, "%s %x %[1]s look\n", name, sha256.Sum256([]byte(name)))
	}
	testkit.Must(t, os.WriteFile(file, lines, 0o600))
	tokens, err := credential.Read(file)
	testkit.Must(t, err)
	under, err := memstore.New(nil)
	testkit.Must(t, err)
	defer under.Close()
	shop := "shop"
	for _, test := range []struct {
		program, own *string // the program's only namespace, and that of requests without a credential
		tokens       []*credential.Credential
		token, want  string
	}{
		{nil, nil, nil, "", "all"}, {nil, &shop, nil, "", "all"}, {&shop, &shop, nil, "", "all"},
		{nil, &shop, tokens, "shop", "shop"}, {nil, &shop, tokens, "bank", "bank"}, {nil, &shop, tokens, "*", "all"}, {nil, nil, tokens, "", "401"},
		{&shop, &shop, tokens, "shop", "all"}, {&shop, &shop, tokens, "bank", "403"}, {&shop, &shop, tokens, "*", "all"},
	} {
		s, err := New(&Options{
			Log: slog.New(slog.DiscardHandler), Store: under, Namespace: test.own, Page: page.Options{Namespace: test.program},
			Refuse: func(w http.ResponseWriter, _ *http.Request, status int, _ string) { _, _ = fmt.Fprint(w, status) },
			Metrics: func(namespace *string) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, *cmp.Or(namespace, new("all")))
				})
			},
		})
		testkit.Must(t, err)
		s.UseTokens(test.tokens)
		r := httptest.NewRequestWithContext(t.Context(), "GET", "http://localhost/metrics", nil)
		r.RemoteAddr = "127.0.0.1:1"
		if test.token != "" {
			r.Header.Set("Authorization", "Bearer "+test.token)
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if got := w.Body.String(); got != test.want {
			t.Errorf("%q reads %s; want %s", test.token, got, test.want)
		}
	}
}

// TestListenSaysWhatToDo: the error of an address that cannot be listened on says why, and what to do.
func TestListenSaysWhatToDo(t *testing.T) {
	l := testkit.Listen(t)
	for address, want := range map[string]string{
		l.Addr().String(): "another process listens on " + l.Addr().String() + ": end it, or choose another port",
		"192.0.2.1:0":     "192.0.2.1:0 is not an address of this host: write 127.0.0.1",
	} {
		got, err := Listen(address, 0)
		if err == nil {
			got.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", address, err, want)
		}
	}
}

// TestReadiness: checks within a second of an answer of the store have that answer.
func TestReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r readiness
		asked, answers := 0, true
		check := func(want bool, count int) {
			t.Helper()
			got := r.check(func() bool {
				asked++
				time.Sleep(readyLimit)
				return answers
			})
			if got != want || asked != count {
				t.Errorf("ready is %v, want %v; the store was asked %d times, want %d", got, want, asked, count)
			}
		}
		check(true, 1)
		answers = false
		time.Sleep(readyFor - 1)
		check(true, 1)
		time.Sleep(1)
		check(false, 2)
		answers = true
		check(false, 2)
		time.Sleep(readyFor)
		check(true, 3)
	})
}
