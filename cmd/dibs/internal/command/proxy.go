package command

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/metrics"
	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/internal/stores"
	"github.com/dibs-go/dibs/memstore"
)

func (p *program) proxy() *cobra.Command {
	var flags proxy.Config
	var file string
	cmd := &cobra.Command{
		Use:   "proxy --upstream URL",
		Short: "Make the HTTP service behind it idempotent",
		Long: `Stands in front of an HTTP service and runs each request that carries an
Idempotency-Key once. A retry gets the stored answer, marked with
"Idempotent-Replayed: true"; a duplicate of a request that still runs gets 409
and Retry-After. Requests without a key, and those with a safe method, pass
untouched. Several proxies may share a store.

A key belongs to the credentials that come with it: Authorization, X-Api-Key and
the like, all of them together. Requests with other credentials never meet it;
requests without credentials share keys. --scope says otherwise. No cookie is a
credential unless --session-cookie names it.

Once it accepts connections it prints one line with its address. SIGTERM or
SIGINT ends it when the answers that are under way are sent and stored.

A configuration file has the same fields as there are flags, and "routes": a
list of the same fields again for requests with a "host", a "path" (* is one
segment, ** any number) and "methods". The first route that matches counts; what
it does not say, it has from the top.

  upstream: http://127.0.0.1:3000
  store: sqlite:/var/lib/dibs/dibs.db
  routes:
    - path: /v1/charges/**
      methods: [POST]
      require-key: true
      on-crash: at-most-once`,
		Example: `  dibs proxy --listen :8080 --upstream http://127.0.0.1:3000 --store sqlite:dibs.db
  dibs proxy --config dibs.yaml --admin 127.0.0.1:9090

  curl -i -H 'Idempotency-Key: "order-17"' -d amount=700 http://127.0.0.1:8080/charges`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			c, err := proxy.Load(file, cmd.Flags())
			if err != nil {
				return usagef("%v", err)
			}
			if c.Store != "" {
				p.storeURL = c.Store
			}
			return p.serve(cmd.Context(), c)
		}),
	}
	flags.Bind(cmd.Flags())
	p.storeFlags(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "a YAML `FILE` with the same settings, and routes")
	return cmd
}

// serve runs the proxy until ctx ends.
func (p *program) serve(ctx context.Context, c *proxy.Config) error {
	if err := check(c); err != nil {
		return err
	}
	store, err := stores.Open(ctx, p.storeOf())
	if err != nil {
		return err
	}
	defer store.Close()
	client, server, err := build(c, store.Store, &lines{w: p.env.Stderr})
	if err != nil {
		return err
	}
	defer client.Close()
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	text := "dibs proxy: listening on http://" + l.Addr().String()
	if c.Upstream != "" {
		text += ", upstream " + c.Upstream
	}
	text += ", store " + store.String()
	var admin net.Listener
	if c.Admin != "" {
		if admin, err = net.Listen("tcp", c.Admin); err != nil {
			return fmt.Errorf("admin: %w", err)
		}
		defer admin.Close()
		text += ", admin http://" + admin.Addr().String()
	}
	signal.Ignore(syscall.SIGHUP) // a terminal that is closed, or a script that means reload
	// Connections are accepted from here on: the kernel queues them.
	if _, err := fmt.Fprintln(p.env.Stdout, text); err != nil {
		return err
	}
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(floor)
	return server.Serve(ctx, l, admin)
}

// heapFloor counts as a part of the heap without being in memory, because it is
// never touched. The garbage collector runs when the heap has doubled: with it,
// not for every few megabytes of what requests leave behind. It costs up to as
// much memory again.
const heapFloor = 64 << 20

// build makes a proxy over a store.
func build(c *proxy.Config, store dibs.Store, logs io.Writer) (*dibs.Client, *proxy.Server, error) {
	o := &dibs.Options{Namespace: c.Namespace, Label: "dibs proxy", Timeout: storeLimit}
	var admin *proxy.Admin
	if c.Admin != "" {
		m, err := metrics.New("")
		if err != nil {
			return nil, nil, err
		}
		o.Observe, o.ObserveStore = m.Lease, m.StoreCall
		admin = &proxy.Admin{Version: version(), Metrics: m.Handler(), Observe: m.Request}
	}
	client, err := dibs.New(store, o)
	if err != nil {
		return nil, nil, usagef("%v", err)
	}
	server, err := proxy.New(c, client, admin, logs)
	if err != nil {
		client.Close()
		return nil, nil, usagef("%v", err)
	}
	return client, server, nil
}

// storeLimit bounds one call of the store.
const storeLimit = 4 * time.Second

// check builds the proxy once over a store in memory, so that what is wrong with
// the configuration is said before a store is opened, and perhaps made.
func check(c *proxy.Config) error {
	store, err := memstore.New(nil)
	if err != nil {
		return err
	}
	defer store.Close()
	client, _, err := build(c, store, io.Discard)
	if err != nil {
		return err
	}
	return client.Close()
}

// lines makes a writer safe for several logs, each of which writes whole lines.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
