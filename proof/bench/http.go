package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/stores/memstore"
)

const (
	// childArg as the first argument makes the program one of the servers.
	childArg = "serve"
	// connections is how many clients load an HTTP server at once.
	connections = 64
	// body is what every request carries, and every answer.
	body = `{"amount":4200,"currency":"eur","customer":"cus_8841","description":"order 100234"}`
)

// child runs one server: bare, lending, guarded, or reverse URL. It prints its address
// on a line and ends with its standard input.
func child(ctx context.Context, args []string) error {
	var handler http.Handler
	switch {
	case len(args) == 1 && args[0] == "bare":
		handler = http.HandlerFunc(charge)
	case len(args) == 1 && args[0] == "lending":
		handler = http.HandlerFunc(lend)
	case len(args) == 1 && args[0] == "guarded":
		scope := servertest.NewScope()
		defer scope.Close()
		handler = guard(&candidates{Scope: scope}, http.HandlerFunc(charge))
	case len(args) == 2 && args[0] == "reverse":
		upstream, err := url.Parse(args[1])
		if err != nil {
			return err
		}
		handler = tunedReverseProxy(upstream)
	default:
		return fmt.Errorf("no such server: %q", args)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	// What any server needs that faces the world, and dibs proxy has too.
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	fmt.Println("http://" + l.Addr().String())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}

// charge is the bare handler: it reads the request and answers.
func charge(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, body)
}

// guard puts the middleware over memstore in front of a handler.
func guard(b *candidates, h http.Handler) http.Handler {
	store := get(memstore.New(&memstore.Options{MaxKeys: 50_000_000, MaxBytes: 8 << 30}))
	return get(idempotency.New(b.client(store, store.Close, &dibs.Options{}), nil)).Wrap(h)
}

// tunedReverseProxy is the standard library's, set up as well as it can be:
// connections enough for every client, buffers reused.
func tunedReverseProxy(upstream *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		Transport: &http.Transport{
			MaxIdleConns:        2 * connections,
			MaxIdleConnsPerHost: 2 * connections,
			IdleConnTimeout:     time.Minute,
			DisableCompression:  true,
		},
		BufferPool: &buffers{},
	}
}

// buffers is the reverse proxy's pool.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// A server is a child process that accepts on an address.
type server struct {
	cmd   *exec.Cmd
	url   string
	admin string // the last address that it says
}

// serve starts a program that prints its URL on the first line of its output. It ends with the
// candidates.
func (b *candidates) serve(ctx context.Context, program string, args ...string) *server {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = os.Stderr
	stop, out := get(cmd.StdinPipe()), get(cmd.StdoutPipe())
	must(cmd.Start())
	b.Cleanup(func() {
		_ = stop.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	s := &server{cmd: cmd}
	line, err := bufio.NewReader(out).ReadString('\n')
	for word := range strings.FieldsSeq(line) {
		if strings.HasPrefix(word, "http://") {
			s.admin = strings.TrimRight(word, ",;.")
			s.url = cmp.Or(s.url, s.admin)
		}
	}
	if s.url == "" {
		must(fmt.Errorf("%s %v said no address, but %q: %w", program, args, line, err))
	}
	return s
}

// own starts one of this program's own servers.
func (b *candidates) own(ctx context.Context, args ...string) *server {
	return b.serve(ctx, get(os.Executable()), append([]string{childArg}, args...)...)
}

// proxy starts dibs proxy before an origin.
func (b *candidates) proxy(ctx context.Context, c config, origin *server, more ...string) *server {
	return b.serve(ctx, c.dibs, append([]string{"proxy", "--listen", "127.0.0.1:0", "--upstream", origin.url, "--store", "memory:", "--access-log=off"}, more...)...)
}

// addr is where the server accepts.
func (s *server) addr() string { return strings.TrimPrefix(s.url, "http://") }

// dial returns a client of an address with n connections. Each call has one of them to itself.
func (b *candidates) dial(network, addr string, n int) *fasthttp.HostClient {
	client := &fasthttp.HostClient{
		Addr: addr, MaxConns: n, MaxConnWaitTimeout: stuck, MaxIdemponentCallAttempts: 1, NoDefaultUserAgentHeader: true,
		Dial: func(string) (net.Conn, error) { return net.Dial(network, addr) },
	}
	b.Cleanup(client.CloseIdleConnections)
	return client
}

// post sends a request, with an Idempotency-Key unless that is "", and returns its answer, which must
// have the status and what it has to have.
func post(c *fasthttp.HostClient, path, key, body string, status int, has string) (string, error) {
	req, res := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(res)
	req.Header.SetMethod(http.MethodPost)
	req.Header.SetHost("localhost")
	req.SetRequestURI(path)
	req.Header.SetContentType("application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	req.SetBodyString(body)
	if err := c.Do(req, res); err != nil {
		return "", err
	}
	text := string(res.Body())
	if res.StatusCode() != status || !strings.Contains(text, has) {
		return "", fmt.Errorf("%s answered %d: %s", path, res.StatusCode(), text)
	}
	return text, nil
}

// read returns what is at a URL.
func read(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// keys returns the key of a client's i-th request.
type keys func(client, i int) string

// once makes keys that are never used again.
func once() keys {
	run := time.Now().UnixNano()
	return func(client, i int) string { return fmt.Sprintf("%x-%d-%d", run, client, i) }
}

// again makes one key for each client, which retries.
func again() keys { return func(client, _ int) string { return "key-" + strconv.Itoa(client) } }

// load returns how many POSTs a second the server answers, each client's after another.
func (b *candidates) load(c config, s *server, of func() keys) side {
	client := b.dial("tcp", s.addr(), connections)
	return func(ctx context.Context, _ int) float64 {
		key := of()
		return rate(ctx, s.url, connections, c.round, func(_ context.Context, g, i int) error {
			_, err := post(client, "/charges", key(g, i), body, http.StatusCreated, "")
			return err
		})
	}
}

// compareServers compares two servers.
func (b *candidates) compareServers(ctx context.Context, c config, ours, floor *server, of func() keys) figure {
	return interleave(ctx, c, "answers/s", b.load(c, ours, of), b.load(c, floor, of))
}

// middlewareReplay compares replays of the middleware with the bare handler,
// both behind a real server.
var middlewareReplay = with(alone, func(ctx context.Context, c config, b *candidates) figure {
	return b.compareServers(ctx, c, b.own(ctx, "guarded"), b.own(ctx, "bare"), again)
})

// compareProxies compares requests through the proxy with the same through the tuned reverse proxy,
// before one origin.
func compareProxies(of func() keys) func(context.Context, config) figure {
	return with(alone, func(ctx context.Context, c config, b *candidates) figure {
		origin := b.own(ctx, "bare")
		return b.compareServers(ctx, c, b.proxy(ctx, c, origin), b.own(ctx, "reverse", origin.url), of)
	})
}

// eachSecond calls f each second until ctx ends.
func eachSecond(ctx context.Context, f func()) {
	each := time.NewTicker(time.Second)
	defer each.Stop()
	for {
		select {
		case <-each.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// proxyObserved compares first requests through a proxy whose metrics are scraped each
// second with the same through one that has none.
var proxyObserved = with(alone, func(ctx context.Context, c config, b *candidates) figure {
	origin := b.own(ctx, "bare")
	bare, observed := b.proxy(ctx, c, origin), b.proxy(ctx, c, origin, "--admin", "127.0.0.1:0")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go eachSecond(ctx, func() { _, _ = read(ctx, observed.admin+"/metrics") })
	return b.compareServers(ctx, c, observed, bare, once)
})

// proxyPages compares first requests through a proxy while ten pages for operators are open with
// the same through the same proxy without them. The pages are opened anew in each round, so they
// get more messages than pages that stay open.
var proxyPages = with(alone, func(ctx context.Context, c config, b *candidates) figure {
	proxy := b.proxy(ctx, c, b.own(ctx, "bare"), "--admin", "127.0.0.1:0")
	load := b.load(c, proxy, once)
	return interleave(ctx, c, "answers/s", func(ctx context.Context, round int) float64 {
		opened, closeAll := context.WithCancel(ctx)
		var open sync.WaitGroup
		defer open.Wait()
		defer closeAll()
		for range 10 {
			open.Go(func() { _, _ = read(opened, proxy.admin+"/page/events") })
		}
		return load(ctx, round)
	}, load)
})
