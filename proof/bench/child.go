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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/stores/memstore"
)

// childArg as the first argument makes the program one of the servers.
const childArg = "serve"

// child runs one server: bare, guarded, or reverse URL. It prints its address
// on a line and ends with its standard input.
func child(ctx context.Context, args []string) error {
	var handler http.Handler
	switch {
	case len(args) == 1 && args[0] == "bare":
		handler = http.HandlerFunc(charge)
	case len(args) == 1 && args[0] == "guarded":
		guarded, closeAll, err := guard(http.HandlerFunc(charge))
		if err != nil {
			return err
		}
		defer closeAll()
		handler = guarded
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
func guard(h http.Handler) (http.Handler, func(), error) {
	store, err := memstore.New(&memstore.Options{MaxKeys: 50_000_000, MaxBytes: 8 << 30})
	if err != nil {
		return nil, nil, err
	}
	client, err := dibs.New(store, nil)
	if err != nil {
		return nil, nil, err
	}
	m, err := idempotency.New(client, nil)
	if err != nil {
		return nil, nil, err
	}
	return m.Wrap(h), func() { _ = client.Close(); _ = store.Close() }, nil
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
	stop  io.Closer
	url   string
	admin string // the last address that it says
}

// serve starts a program that prints its URL on the first line of its output.
func serve(ctx context.Context, program string, args ...string) (*server, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = os.Stderr
	stop, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, stop: stop}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.end()
		return nil, fmt.Errorf("%s %v did not come up: %w", program, args, err)
	}
	for word := range strings.FieldsSeq(line) {
		if strings.HasPrefix(word, "http://") {
			s.admin = strings.TrimRight(word, ",;.")
			s.url = cmp.Or(s.url, s.admin)
		}
	}
	if s.url == "" {
		s.end()
		return nil, fmt.Errorf("%s %v said no address: %q", program, args, line)
	}
	return s, nil
}

// serveOwn starts one of this program's own servers.
func serveOwn(ctx context.Context, args ...string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return serve(ctx, self, append([]string{childArg}, args...)...)
}

// addr is where the server accepts.
func (s *server) addr() string { return strings.TrimPrefix(s.url, "http://") }

func (s *server) end() {
	_ = s.stop.Close()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}
