package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// rule is one rule of docs/reference/http.md, by its name there, and what checks it.
type rule struct {
	name  string
	check func(t *testing.T)
}

// inBubble runs a rule's check in a bubble.
func inBubble(check func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, check) }
}

// docs maps every rule of docs/reference/http.md to its test.
var docs = slices.Concat(keyRules, contentRules, scopeRules, refusalRules, boundRules, slowRules, stateRules, failureRules, runRules, keyRingRules, transactionRules, answerRules, streamRules, controlRules, rpcRules, mcpRules, mcpGuardRules)

func TestDocs(t *testing.T) {
	for _, r := range docs {
		t.Run(r.name, r.check)
	}
}

func TestEveryRuleHasATest(t *testing.T) {
	page := testkit.ReadFile(t, "../docs/reference/http.md")
	var rules []string
	for _, m := range regexp.MustCompile(`(?m)^- \*\*(.+?)\.\*\*`).FindAllStringSubmatch(string(page), -1) {
		rules = append(rules, m[1])
	}
	if len(rules) < 40 {
		t.Fatalf("found only %d rules in docs/reference/http.md", len(rules))
	}
	var tested []string
	for _, r := range docs {
		tested = append(tested, r.name)
	}
	for _, r := range rules {
		if !slices.Contains(tested, r) {
			t.Errorf("docs/reference/http.md says %q, and no test has that name", r)
		}
	}
	for _, r := range tested {
		if !slices.Contains(rules, r) {
			t.Errorf("the test %q is not a rule of docs/reference/http.md", r)
		}
	}
}

// faulty is a memstore whose calls can be made to fail. before is asked first,
// with the name of the call.
type faulty struct {
	*memstore.Store
	before atomic.Pointer[func(ctx context.Context, op string) error]
	claims atomic.Int64
}

func (s *faulty) fail(f func(ctx context.Context, op string) error) { s.before.Store(&f) }
func (s *faulty) heal()                                             { s.before.Store(nil) }

// failing fails the calls of that name.
func failing(call string, err error) func(ctx context.Context, op string) error {
	return func(_ context.Context, op string) error {
		if op == call {
			return err
		}
		return nil
	}
}

func (s *faulty) ask(ctx context.Context, op string) error {
	if f := s.before.Load(); f != nil {
		return (*f)(ctx, op)
	}
	return nil
}

func (s *faulty) Claim(ctx context.Context, c []store.Claim, a []store.Answer) error {
	s.claims.Add(int64(len(c)))
	if err := s.ask(ctx, "claim"); err != nil {
		return err
	}
	return s.Store.Claim(ctx, c, a)
}

func (s *faulty) Renew(ctx context.Context, r []store.Renewal, errs []error) error {
	if err := s.ask(ctx, "renew"); err != nil {
		return err
	}
	return s.Store.Renew(ctx, r, errs)
}

func (s *faulty) Settle(ctx context.Context, r []store.Settlement, errs []error) error {
	if err := s.ask(ctx, "settle"); err != nil {
		return err
	}
	return s.Store.Settle(ctx, r, errs)
}

// errDown is what a store says that is down.
var errDown = errors.New("the store is down")

// rig is a Middleware over a memstore of its own, with a handler.
type rig struct {
	t      *testing.T
	store  *faulty
	client *dibs.Client
	m      *idempotency.Middleware
	h      http.Handler
	runs   atomic.Int64

	mu     sync.Mutex
	events []idempotency.Event
}

// newLogger returns a log and what writes it.
func newLogger() (*bytes.Buffer, *slog.Logger) {
	log := new(bytes.Buffer)
	return log, slog.New(slog.NewTextHandler(log, nil))
}

// newRig returns a rig; a nil handler is one that counts and answers 201.
func newRig(t *testing.T, o *idempotency.Options, handler http.HandlerFunc) *rig {
	t.Helper()
	store, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return newRigOn(t, &faulty{Store: store}, o, handler)
}

func newRigOn(t *testing.T, store *faulty, o *idempotency.Options, handler http.HandlerFunc) *rig {
	t.Helper()
	g := &rig{t: t, store: store}
	var err error
	if g.client, err = dibs.New(store, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.client.Close() })
	var options idempotency.Options
	if o != nil {
		options = *o
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	observe := options.Observe
	options.Observe = func(ctx context.Context, e idempotency.Event) {
		g.mu.Lock()
		g.events = append(g.events, e)
		g.mu.Unlock()
		if observe != nil {
			observe(ctx, e)
		}
	}
	if g.m, err = idempotency.New(g.client, &options); err != nil {
		t.Fatal(err)
	}
	if handler == nil {
		handler = func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, "charge %d", g.runs.Load())
		}
	}
	g.h = g.m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.runs.Add(1)
		handler(w, r)
	}))
	return g
}

// seen returns the events so far.
func (g *rig) seen() []idempotency.Event {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.events)
}

// last returns the last event.
func (g *rig) last() idempotency.Event {
	g.t.Helper()
	events := g.seen()
	if len(events) == 0 {
		g.t.Fatal("no event was observed")
	}
	return events[len(events)-1]
}

// change changes a request before it is sent.
type change func(r *http.Request)

func with(name string, lines ...string) change {
	return func(r *http.Request) {
		if len(lines) == 0 {
			delete(r.Header, http.CanonicalHeaderKey(name))
			return
		}
		r.Header[http.CanonicalHeaderKey(name)] = lines
	}
}

func withKey(key string) change { return with("Idempotency-Key", key) }

func withMethod(m string) change { return func(r *http.Request) { r.Method = m } }

func withHost(h string) change { return func(r *http.Request) { r.Host = h } }

func withBody(text string) change {
	return func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	}
}

func withTarget(target string) change {
	return func(r *http.Request) {
		u := httptest.NewRequestWithContext(context.Background(), r.Method, target, nil)
		r.URL, r.RequestURI = u.URL, u.RequestURI
	}
}

// request makes POST /charges with the key "k".
func request(changes ...change) *http.Request {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/charges", strings.NewReader(`{"amount":1200}`))
	r.Header.Set("Idempotency-Key", `"k"`)
	r.Header.Set("Content-Type", "application/json")
	for _, c := range changes {
		c(r)
	}
	return r
}

// send sends a request and returns what came back.
func (g *rig) send(changes ...change) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	g.h.ServeHTTP(w, request(changes...))
	return w
}

// sendBroken is send for an answer that ends in http.ErrAbortHandler.
func (g *rig) sendBroken(changes ...change) *httptest.ResponseRecorder {
	g.t.Helper()
	w := httptest.NewRecorder()
	func() {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler {
				g.t.Errorf("the transfer ended with %v; it must be broken", p)
			}
		}()
		g.h.ServeHTTP(w, request(changes...))
	}()
	return w
}

// ran checks how often the handler ran.
func (g *rig) ran(want int64) {
	g.t.Helper()
	if got := g.runs.Load(); got != want {
		g.t.Errorf("the handler ran %d times; want %d", got, want)
	}
}

// isReplay checks that w repeats first.
func isReplay(t *testing.T, w, first *httptest.ResponseRecorder) {
	t.Helper()
	if w.Code != first.Code || w.Body.String() != first.Body.String() {
		t.Errorf("answered %d %q; want a replay of %d %q", w.Code, w.Body, first.Code, first.Body)
	}
	if got := w.Result().Header.Get("Idempotent-Replayed"); got != "true" {
		t.Errorf("Idempotent-Replayed is %q on a replay", got)
	}
}

// isFresh checks that w is not a replay.
func isFresh(t *testing.T, w *httptest.ResponseRecorder, status int) {
	t.Helper()
	if w.Code != status {
		t.Errorf("status %d; want %d: %s", w.Code, status, w.Body)
	}
	if got := w.Result().Header.Values("Idempotent-Replayed"); len(got) != 0 {
		t.Errorf("Idempotent-Replayed is %q on an answer that is not a replay", got)
	}
}

// problem is a problem document as clients read it.
type problem struct {
	Type, Title, Detail, Instance string
	Status                        int
}

// isProblem checks that w is the named problem, and returns it.
func isProblem(t *testing.T, w *httptest.ResponseRecorder, name string, status int) problem {
	t.Helper()
	var p problem
	res := w.Result()
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("status %d, and no problem document: %v: %q", w.Code, err, w.Body)
	}
	if w.Code != status || p.Status != status {
		t.Errorf("status %d, in the document %d; want %d", w.Code, p.Status, status)
	}
	if want := idempotency.DocsURL + "#" + name; p.Type != want {
		t.Errorf("type %q; want %q", p.Type, want)
	}
	if got := res.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type %q of a problem", got)
	}
	if p.Title == "" || p.Detail == "" {
		t.Errorf("a problem without title or detail: %+v", p)
	}
	if len(res.Header.Values("Idempotent-Replayed")) != 0 {
		t.Error("a refusal is marked as a replay")
	}
	return p
}

// pipes is a listener whose connections stay in memory, so that a server can be in a
// synctest bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.closed) }); return nil }

func (*pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

// dial returns a new connection.
func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// newBubbleServer starts a server in a bubble. The transport leads there, whatever the
// address.
func newBubbleServer(t *testing.T, h http.Handler) (*httptest.Server, *http.Transport) {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	both := new(http.Protocols)
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	server := &httptest.Server{Listener: p, Config: &http.Server{Handler: h, ErrorLog: newLog(io.Discard), ReadHeaderTimeout: time.Minute, Protocols: both}}
	server.Start()
	t.Cleanup(server.Close)
	base := &http.Transport{DialContext: p.dial}
	t.Cleanup(base.CloseIdleConnections)
	return server, base
}
