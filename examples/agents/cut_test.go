package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// A cut ends a connection after some bytes.
type cut struct {
	after  int64
	answer bool // its bytes count, and not those of the request
	hit    atomic.Bool
}

// errCut is what a client sees of a cut.
var errCut = errors.New("the connection was cut")

// cutConn is a connection that a cut may end.
type cutConn struct {
	net.Conn
	*cut
	left int64
}

// pass passes bytes on until the cut. An odd one resets the connection, and an even one closes it.
func (c *cutConn) pass(p []byte, on func([]byte) (int, error)) (int, error) {
	if c.left == 0 {
		c.hit.Store(true)
		_ = c.Conn.(*net.TCPConn).SetLinger(map[bool]int{true: 0, false: -1}[c.after%2 == 1])
		_ = c.Close()
		return 0, errCut
	}
	n, err := on(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

func (c *cutConn) Read(p []byte) (int, error) {
	if !c.answer {
		return c.Conn.Read(p)
	}
	return c.pass(p, c.Conn.Read)
}

func (c *cutConn) Write(p []byte) (n int, err error) {
	if c.answer {
		return c.Conn.Write(p)
	}
	for n < len(p) && err == nil {
		var m int
		m, err = c.pass(p[n:], c.Conn.Write)
		n += m
	}
	return n, err
}

// cutting is the network of a client. It cuts the next call of a tool.
type cutting struct {
	*http.Transport
	next atomic.Pointer[cut]
}

type cutKey struct{}

func newCutting() *cutting {
	var dialer net.Dialer
	return &cutting{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, addr)
		if c, ok := ctx.Value(cutKey{}).(*cut); ok && err == nil {
			return &cutConn{conn, c, c.after}, nil
		}
		return conn, err
	}}}
}

// RoundTrip sends a request.
func (n *cutting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte(`"method":"tools/call"`)) {
			if c := n.next.Swap(nil); c != nil {
				r = r.WithContext(context.WithValue(r.Context(), cutKey{}, c))
			}
		}
	}
	return n.Transport.RoundTrip(r)
}

// A way is how client and server speak.
type way struct {
	name     string
	revision string
	options  mcp.StreamableHTTPOptions
}

// ways are what the tests of the gate do; the nightly tests have more.
var ways = []way{{"2026-07-28", "2026-07-28", mcp.StreamableHTTPOptions{Stateless: true}}}

// caller is a client that calls again until it hears an answer.
type caller struct {
	t             *testing.T
	url, revision string
	network       *cutting
	session       *mcp.ClientSession
	instance      string // of the last problem
}

// newCaller connects a client, which speaks the revision.
func newCaller(t *testing.T, url, revision string) *caller {
	t.Helper()
	c := &caller{t: t, url: url, revision: revision, network: newCutting()}
	testkit.Must(t, c.connect())
	t.Cleanup(func() { _ = c.session.Close() })
	if got := c.session.InitializeResult().ProtocolVersion; got != revision {
		t.Fatalf("the SDK speaks %s; want %s", got, revision)
	}
	return c
}

// connect begins a session.
func (c *caller) connect() (err error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	transport := &mcp.StreamableClientTransport{Endpoint: c.url, HTTPClient: &http.Client{Transport: c.network}}
	c.session, err = client.Connect(c.t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: c.revision})
	return err
}

// call calls the tool under the key until it hears a result: once more after a cut, and once more in a
// new session if the SDK closed the old one, as it does after a JSON body that was cut.
func (c *caller) call(ctx context.Context, key string) (string, error) {
	for try := 1; ; try++ {
		result, err := c.session.CallTool(ctx, &mcp.CallToolParams{Meta: mcp.Meta{keyMember: key}, Name: "charge", Arguments: order{ID: key, Cents: 1200}})
		if err == nil {
			return result.Content[0].(*mcp.TextContent).Text, nil
		}
		if try == 3 || ctx.Err() != nil {
			return "", err
		}
		if errors.Is(err, mcp.ErrConnectionClosed) {
			_ = c.session.Close()
			if err := c.connect(); err != nil {
				return "", err
			}
		}
	}
}

// keyMember is where the proxy looks for the key.
const keyMember = "io.github.dibs-go/idempotency-key"

// proxied starts a proxy in front of the handler, and returns its URL.
func proxied(t *testing.T, h http.Handler) string {
	t.Helper()
	origin := httptest.NewServer(h)
	t.Cleanup(func() { origin.CloseClientConnections(); origin.Close() })
	return proxiedOrigin(t, origin.URL)
}

// proxiedOrigin starts a proxy in front of an origin, and returns its URL.
func proxiedOrigin(t *testing.T, origin string, flags ...string) string {
	t.Helper()
	proxy, url, err := startProxy(append([]string{"--listen=127.0.0.1:0", "--store=memory:", "--for=mcp", "--upstream=" + origin}, flags...)...)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = proxy.Process.Kill(); _ = proxy.Wait() })
	return url
}

// TestCuts cuts the connection at every byte of a call and of its answer, while another caller calls at
// the same time with the same key. The card is charged once, and each hears that. The SDK hears only
// what has the id of its own request.
func TestCuts(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := new(shop)
			url := proxied(t, serve(s.charge, &way.options))
			a, b := newCaller(t, url, way.revision), newCaller(t, url, way.revision)
			cuts := int64(0)
			for _, answer := range []bool{false, true} {
				for at := int64(0); ; at++ {
					c := &cut{after: at, answer: answer}
					a.checkCut(t, b, s, c)
					if t.Failed() {
						t.Fatalf("cut at byte %d, of the answer: %v", at, answer)
					}
					if !c.hit.Load() {
						break
					}
					cuts++
				}
			}
			if cuts < 600 {
				t.Errorf("there were %d cuts, which is less than a call and its answer have", cuts)
			}
			t.Logf("%d cuts", cuts)
		})
	}
}

// checkCut lets both callers call under a new key, and cuts one.
func (c *caller) checkCut(t *testing.T, other *caller, s *shop, next *cut) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	before, key := s.charges(), testkit.Own()
	c.network.next.Store(next)
	var heard [2]string
	var callers sync.WaitGroup
	for i, one := range []*caller{c, other} {
		callers.Go(func() {
			var err error
			heard[i], err = one.call(ctx, key)
			testkit.Check(t, err)
		})
	}
	callers.Wait()
	if n := s.charges() - before; n != 1 || heard[0] != heard[1] || !strings.HasPrefix(heard[0], "charge ") {
		t.Errorf("%d charges; the callers heard %q", n, heard)
	}
}
