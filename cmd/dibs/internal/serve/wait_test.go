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

const queued = `,"mode":"queue"}],"wait_ms":60000`

// TestAWaiterIsAnsweredWhenItsTurnHasCome: and not before.
func TestAWaiterIsAnsweredWhenItsTurnHasCome(t *testing.T) {
	r := start(t, inMemory(t), nil)
	if got := r.claim(1, "}]").state(); got != "granted" {
		t.Fatal(got)
	}
	done := make(chan string, 1)
	go func() { done <- r.claim(2, queued).state() }()
	r.waits(1)
	if got := r.claim(3, `,"mode":"queue"}]`).state(); got != "held" {
		t.Fatal(got)
	}
	if len(done) > 0 {
		t.Fatal("it was answered while the key was held")
	}
	if got := r.settle(1).status; got != http.StatusOK {
		t.Fatal(got)
	}
	if got := <-done; got != "granted" {
		t.Errorf("the waiter is told %s", got)
	}
}

// TestAWaitEndsWithItsTime: the place stands after it, and the same token asks on.
func TestAWaitEndsWithItsTime(t *testing.T) {
	r := start(t, inMemory(t), nil)
	r.claim(1, "}]")
	if got := r.claim(2, `,"mode":"queue"}],"wait_ms":1`); got.state() != "held" || !got.Answers[0].Queued {
		t.Fatal(got.text)
	}
	r.claim(3, `,"mode":"queue"}]`)
	r.settle(1)
	if got := r.claim(3, "}]").state(); got != "held" {
		t.Errorf("the second waiter is told %s", got)
	}
	if got := r.claim(2, "}]").state(); got != "granted" {
		t.Errorf("the first waiter is told %s", got)
	}
}

// TestAWaitForNoClaim: a call that waits and has no claim is answered at once, as one that does
// not wait.
func TestAWaitForNoClaim(t *testing.T) {
	r := start(t, inMemory(t), nil)
	for _, body := range []string{`{"claims":[],"wait_ms":60000}`, `{"claims":[]}`} {
		if got := r.do("POST", "/v1/claim", "", body); got.status != 200 || got.text != `{"answers":[]}` {
			t.Errorf("%s is answered %d %s", body, got.status, got.text)
		}
	}
}

// TestAWaitOverSeveralClaims: it ends with the first one that is not held, and the others keep
// their places.
func TestAWaitOverSeveralClaims(t *testing.T) {
	r := start(t, inMemory(t), nil)
	two := func(n int, rest string) string {
		return fmt.Sprintf(`{"claims":[{"key":"a","token":"%032x","mode":"queue"},{"key":"b","token":"%032x","mode":"queue"}]%s}`, n, n+1, rest)
	}
	r.do("POST", "/v1/claim", "", two(10, ""))
	done := make(chan *reply, 1)
	go func() { done <- r.do("POST", "/v1/claim", "", two(20, `,"wait_ms":60000`)) }()
	r.waits(2)
	r.do("POST", "/v1/settle", "", fmt.Sprintf(`{"settlements":[{"key":"b","token":"%032x"}]}`, 11))
	if got := <-done; len(got.Answers) != 2 || got.Answers[0].State != "held" || !got.Answers[0].Queued || got.Answers[1].State != "granted" {
		t.Error(got.text)
	}
}

// TestASettledTokenIsNotAskedForAgain: a client that gives up settles its token while its call
// still waits. No place is left.
func TestASettledTokenIsNotAskedForAgain(t *testing.T) {
	s := inMemory(t)
	r := start(t, s, nil)
	r.claim(1, "}]")
	done := make(chan string, 1)
	go func() { done <- r.claim(2, queued).state() }()
	r.waits(1)
	r.settle(2)
	if got := <-done; got != "held" {
		t.Errorf("the call is answered with %s", got)
	}
	r.settle(1)
	for e, err := range s.List(t.Context(), store.Query{}) {
		t.Errorf("%+v is left (%v)", e, err)
	}
}

// TestAClientThatGoesAway: its call ends, and its place stands for its PlaceTTL.
func TestAClientThatGoesAway(t *testing.T) {
	r := start(t, inMemory(t), nil)
	r.claim(1, "}]")
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		body := fmt.Sprintf(`{"claims":[{"key":"k","token":"%032x","mode":"queue","place_ttl_ms":60000}],"wait_ms":60000}`, 2)
		req, err := http.NewRequestWithContext(ctx, "POST", r.URL+"/v1/claim", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Content-Type", "application/json")
		if resp, err := r.Client().Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	r.waits(1)
	cancel()
	<-gone
	r.waits(0)
	r.claim(3, `,"mode":"queue"}]`)
	r.settle(1)
	if got := r.claim(3, "}]").state(); got != "held" {
		t.Errorf("the waiter behind is told %s", got)
	}
	if got := r.claim(2, "}]").state(); got != "granted" {
		t.Errorf("the client that comes back is told %s", got)
	}
}

// TestAServerThatStops: it answers the calls that wait, and refuses new ones.
func TestAServerThatStops(t *testing.T) {
	r := start(t, inMemory(t), nil)
	r.claim(1, "}]")
	done := make(chan *reply, 1)
	go func() { done <- r.claim(2, queued) }()
	r.waits(1)
	r.server.shell.Stop()
	if got := <-done; got.state() != "held" || !got.Answers[0].Queued {
		t.Errorf("the call that waits is answered with %s", got.text)
	}
	if got := r.claim(3, "}]"); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("a new call is answered with %d %s", got.status, got.text)
	}
	if got := r.do("GET", "/healthz", "", ""); got.status != http.StatusOK {
		t.Errorf("/healthz is %d", got.status)
	}
	if got := r.do("GET", "/readyz", "", ""); got.status != http.StatusServiceUnavailable {
		t.Errorf("/readyz is %d", got.status)
	}
}

// pushing is a store that pushes a grant to the token that it is told to.
type pushing struct {
	dibs.Store
	wake    func(store.Token, store.Answer)
	renewed chan store.Renewal
}

func (p *pushing) Notify(wake func(store.Token, store.Answer)) func() {
	p.wake = wake
	return func() {}
}

func (p *pushing) Renew(ctx context.Context, r []store.Renewal, errs []error) error {
	p.renewed <- r[0]
	return p.Store.Renew(ctx, r, errs)
}

// TestAPushedGrantBetweenTwoCalls: the grant lasts as long as the place would have, if its
// client is between two calls, and is not renewed for a token that was settled.
func TestAPushedGrantBetweenTwoCalls(t *testing.T) {
	p := &pushing{Store: inMemory(t), renewed: make(chan store.Renewal, 10)}
	r := start(t, p, nil)
	r.claim(1, "}]")
	r.claim(2, `,"mode":"queue","place_ttl_ms":60000}]`)
	r.claim(3, `,"mode":"queue","place_ttl_ms":60000}]`)
	token := func(n byte) store.Token { return store.Token{15: n} }
	r.settle(3)
	p.wake(token(3), store.Answer{State: store.Granted, Fence: 1})
	p.wake(token(9), store.Answer{State: store.Granted, Fence: 1})
	p.wake(token(2), store.Answer{State: store.Granted, Fence: 1})
	got := <-p.renewed
	if got.Token != token(2) || got.Key.Name != "k" || got.TTL <= store.PushedTTL || got.TTL > time.Minute {
		t.Errorf("renewed is %+v", got)
	}
	if len(p.renewed) > 0 {
		t.Errorf("renewed is %+v as well", <-p.renewed)
	}
}

// TestAPushedGrantAfterACall: the same holds after a call that waited in vain, and after one whose
// client went away.
func TestAPushedGrantAfterACall(t *testing.T) {
	for name, call := range map[string]func(r *rig){
		"its wait is over": func(r *rig) { r.claim(2, `,"mode":"queue","place_ttl_ms":60000}],"wait_ms":1`) },
		"its client went away": func(r *rig) {
			body := fmt.Sprintf(`{"claims":[{"key":"k","token":"%032x","mode":"queue","place_ttl_ms":60000}],"wait_ms":60000}`, 2)
			conn := r.open(head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
			r.waits(1)
			conn.Close()
			r.waits(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &pushing{Store: inMemory(t), renewed: make(chan store.Renewal, 10)}
			r := start(t, p, nil)
			r.claim(1, "}]")
			call(r)
			p.wake(store.Token{15: 2}, store.Answer{State: store.Granted, Fence: 1})
			if got := testkit.Await(t, "the renewal", p.renewed); got.Token != (store.Token{15: 2}) || got.TTL <= store.PushedTTL {
				t.Errorf("renewed is %+v", got)
			}
		})
	}
}

// TestAGrantThatIsKeptLastsForItsTTL: the client may claim while the server renews the grant that
// came between two calls. The renewal must not shorten the lease that the client counts on.
func TestAGrantThatIsKeptLastsForItsTTL(t *testing.T) {
	p := &pushing{Store: inMemory(t), renewed: make(chan store.Renewal, 1)}
	r := start(t, p, nil)
	r.claim(1, "}]")
	r.claim(2, `,"mode":"queue","place_ttl_ms":60000,"ttl_ms":600000}]`)
	p.wake(store.Token{15: 2}, store.Answer{State: store.Granted, Fence: 1})
	if got := <-p.renewed; got.TTL < 10*time.Minute {
		t.Errorf("the lease is renewed for %v", got.TTL)
	}
}

// TestALookWithoutATokenIsNotSettled: a settlement of the token of zeros does not end it.
func TestALookWithoutATokenIsNotSettled(t *testing.T) {
	r := start(t, inMemory(t), nil)
	r.claim(1, "}]")
	done := make(chan string, 1)
	go func() {
		done <- r.do("POST", "/v1/claim", "", `{"claims":[{"key":"k","mode":"look"}],"wait_ms":60000}`).state()
	}()
	r.waits(1)
	r.settle(0)
	r.settle(1)
	if got := <-done; got != "free" {
		t.Errorf("the look is answered with %s", got)
	}
}

// TestAGrantBetweenTheLastQuestionAndTheEnd: a wake-up that a call had no time to ask about may
// have been a grant, so the lease is renewed for the client's next call.
func TestAGrantBetweenTheLastQuestionAndTheEnd(t *testing.T) {
	renewed := make(chan store.Renewal, 1)
	s := newWaiters(func(r store.Renewal) { renewed <- r })
	claims := []store.Claim{{Key: dibs.Key{Name: "k"}, Token: store.NewToken(), Mode: store.Queue, TTL: time.Minute, PlaceTTL: time.Second}}
	w := s.enter(claims)
	s.wake(claims[0].Token, store.Answer{State: store.Granted, Fence: 1})
	s.leave(claims, w)
	if got := <-renewed; got.Token != claims[0].Token || got.TTL != time.Minute {
		t.Errorf("renewed is %+v", got)
	}
}

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
