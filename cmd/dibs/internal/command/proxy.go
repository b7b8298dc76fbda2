package command

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/metrics"
	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

func (p *program) proxy() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "proxy --upstream URL",
		Short: "Make the HTTP service behind the proxy idempotent",
		Long: `Forwards requests to an HTTP service, and lets each request with an
Idempotency-Key run once. A retry gets the stored answer, marked with
"Idempotent-Replayed: true". A duplicate of a running request gets 409 and
Retry-After. Requests without a key or with a safe method are only forwarded.
Several proxies may share a store. It must be named: --store or DIBS_STORE.

A key belongs to the credentials of its request: Authorization, X-Api-Key and
the like, all of them together. Requests with other credentials have other keys.
Requests without credentials share keys. --scope changes that. A cookie counts
only if it is named: --scope credentials,cookie:NAME.

Once it accepts connections, it prints one line with its address. After SIGTERM
or SIGINT it sends and stores the answers under way, and ends. After SIGHUP, or
a POST to /reload at the admin address, it reads the configuration file and the
key rings again, and drops no request.

A configuration file has these settings and more, which docs/reference/proxy.md
lists, and "routes": a list with the same fields for requests with a "host" (*.
is one or more labels), a "path" (* is one segment, ** any number of segments)
and "methods". The first route that matches serves the request. It inherits from
the top what it does not set.

  upstream: http://127.0.0.1:3000
  store: sqlite:/var/lib/dibs/dibs.db
  routes:
    - path: /v1/charges/**
      methods: [POST]
      require-key: true
      on-crash: at-most-once

"dibs config check FILE" finds the faults of such a file. Each field has an
environment variable too: max-body is DIBS_PROXY_MAX_BODY, and store is
DIBS_STORE. A flag overrides a variable, and a variable overrides the file.`,
		Example: `  dibs proxy --listen :8080 --upstream http://127.0.0.1:3000 --store sqlite:/var/lib/dibs/dibs.db
  dibs proxy --config dibs.yaml --admin 127.0.0.1:9090

  curl -i -H 'Idempotency-Key: "order-17"' -d amount=700 http://127.0.0.1:8080/charges`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			reload := make(chan os.Signal, 1)
			// First of all and never stopped, because SIGHUP would end a proxy that starts or drains.
			signal.Notify(reload, syscall.SIGHUP)
			c, err := p.load(file, cmd.Flags())
			if err != nil {
				return err
			}
			if c.Store != "" {
				p.storeURL = c.Store
			}
			return p.serve(cmd.Context(), c, reload)
		}),
	}
	p.storeFlags(cmd.Flags())
	proxy.Bind(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "a YAML `FILE` with the same settings, and with routes")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if words := proxy.Words(f); words != nil {
			complete(cmd, f.Name, words...)
		}
	})
	return cmd
}

// The modes of Unix sockets: a gateway in the proxy's group may send requests, and only the proxy's own
// user is the operator that a request of this host is.
const (
	listenMode = 0o660
	adminMode  = 0o600
)

// serve runs the proxy until ctx ends. Signals from reload make it read its configuration again.
func (p *program) serve(ctx context.Context, c *proxy.Config, reload <-chan os.Signal) error {
	url, err := p.storeOf()
	if err != nil {
		return err
	}
	store, err := anystore.Open(ctx, url, anystore.ToUse)
	if err != nil {
		return err
	}
	defer store.Close()
	log := c.Logger(p.env.Stderr)
	client, running, err := build(c, store.Store, store.String(), log)
	if err != nil {
		return err
	}
	defer client.Close()
	l, err := server.Listen(c.Listen, listenMode)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	where := []string{"url", server.URL(l, c.TLSCert != "")}
	if c.Upstream != "" {
		where = append(where, "upstream", c.Upstream)
	}
	where = append(where, "store", store.String())
	var admin net.Listener
	if c.Admin != "" {
		if admin, err = server.Listen(c.Admin, adminMode); err != nil {
			return fmt.Errorf("admin: %w", err)
		}
		defer admin.Close()
		where = append(where, "admin", server.URL(admin, c.AdminTLS))
	}
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(floor)
	return p.serveUntil(log, c.LogFormat, "dibs proxy", where, func() error { return running.Serve(ctx, l, admin, reload) })
}

// serveUntil says where a server accepts connections, and serves.
func (p *program) serveUntil(log *slog.Logger, format, program string, where []string, serve func() error) error {
	if err := server.Announce(p.env.Stdout, program, format, where...); err != nil {
		return err
	}
	server.Capture(log)
	if err := serve(); err != nil {
		log.Error("the server ends, because it cannot accept connections", "error", err)
		return exitf(codeFailed, "")
	}
	return nil
}

// heapFloor is allocated and never touched, so it takes no memory, but it counts as heap. The
// garbage collector runs when the heap has doubled. With a small heap it would run every few
// megabytes.
const heapFloor = 64 << 20

// build returns a proxy over a store. The page for operators shows the store's name.
func build(c *proxy.Config, under dibs.Store, name string, log *slog.Logger) (*dibs.Client, *proxy.Server, error) {
	// The proxy itself logs that requests find no store.
	o := &dibs.Options{Namespace: c.Namespace, Label: "dibs proxy", Timeout: c.MaxStoreTimeout(), Logger: slog.New(slog.DiscardHandler)}
	var admin *proxy.Admin
	if c.Admin != "" {
		m, err := metrics.New()
		if err != nil {
			return nil, nil, err
		}
		var live *survey.Survey
		if in, ok := under.(store.Inspector); ok {
			live = survey.New(in, &c.Namespace)
			if err := m.Live(live, &c.Namespace); err != nil {
				return nil, nil, err
			}
		}
		traffic := new(page.Traffic)
		o.Observe = m.Lease
		o.ObserveStore = func(c dibs.StoreCall) {
			m.StoreCall(c)
			traffic.StoreCall(c)
		}
		admin = &proxy.Admin{Version: version(), Metrics: m.Handler, Store: under, StoreName: name, Traffic: traffic, Survey: live, Observe: func(ctx context.Context, e idempotency.Event) {
			m.Request(ctx, e)
			traffic.Request(ctx, e)
		}}
	}
	client, err := dibs.New(under, o)
	if err != nil {
		return nil, nil, usagef("%v", err)
	}
	running, err := proxy.New(c, client, admin, log)
	if err != nil {
		client.Close()
		return nil, nil, usagef("%v", err)
	}
	return client, running, nil
}

// storeLimit is how long a call of the store may take by default.
const storeLimit = 4 * time.Second
