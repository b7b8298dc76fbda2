package command

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/cmd/dibs/internal/metrics"
	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/cmd/dibs/internal/serve"
	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/suggest"
	"github.com/dibs-go/dibs/internal/survey"
	dibstore "github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

// serving are the flags of dibs serve.
type serving struct {
	serve.Config
	listen     []string
	socketMode string
	logFormat  string
}

func (p *program) serveAPI() *cobra.Command {
	var o serving
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Lend locks and stored results to programs in every language",
		Long: `Serves the lease API: locks, places in a queue and stored results over HTTP,
for programs in Ruby, Python, JavaScript and every other language. The API is
three calls, which docs/reference/serve.md and /v1/openapi.json describe.

The server keeps nothing that matters: every call may be repeated, at this
server or at another one of the same store. Any number of servers may share a
store.

On a Unix socket and on 127.0.0.1 it needs no credential, for programs of this
host. Everywhere else it needs --tokens, a file with a line for each credential:

  NAME SHA256 NAMESPACE ROLE[,ROLE]

SHA256 is that of the token (printf %s TOKEN | sha256sum). NAMESPACE is - for
the one without a name, and * for every namespace. The roles are use (claim,
renew and settle), look (list keys) and act (release, settle and forget the
keys of others). With --tokens every listener needs a credential. SIGHUP makes
the server read the file again.

At / is a page for operators: who waits, what a person must decide, and the life
of one key. It takes the same tokens, or the users of a single sign-on.

Once it accepts connections, it prints one line with its addresses. After
SIGTERM or SIGINT it answers the calls that wait, and ends.`,
		Example: `  dibs serve --store redis://cache.internal --listen unix:/run/dibs/dibs.sock
  dibs serve --store postgres://db/app --listen :7331 --tokens /etc/dibs/tokens

  curl --unix-socket /run/dibs/dibs.sock http://dibs/v1/claim \
    -H 'Content-Type: application/json' -d \
    '{"claims":[{"key":"invoice 42","token":"'$(openssl rand -hex 16)'"}]}'`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			reload := make(chan os.Signal, 1)
			signal.Notify(reload, syscall.SIGHUP)
			return p.serveStore(cmd.Context(), &o, reload)
		}),
	}
	p.storeFlags(cmd.Flags())
	f := cmd.Flags()
	f.StringArrayVar(&o.listen, "listen", []string{"127.0.0.1:7331"}, "an `ADDRESS` such as :7331 or unix:/run/dibs/dibs.sock; may come several times")
	f.StringVar(&o.socketMode, "socket-mode", "0600", "the `MODE` of Unix sockets, octal")
	f.StringVar(&o.Tokens, "tokens", "", "the `FILE` of credentials")
	f.StringVar(&o.Header, "user-header", "", "the header `FIELD` in which a single sign-on names its user; its users see the page at /")
	f.BoolVar(&o.Act, "user-act", false, "users of the single sign-on may release, forget and resolve keys")
	f.BoolVar(&o.ShowBodies, "show-bodies", false, "show the bodies of records on the page, to those who may act")
	f.StringVar(&o.TLSCert, "tls-cert", "", "the PEM `FILE` of the certificate to serve HTTPS with, read again when it changes; Unix sockets stay plain")
	f.StringVar(&o.TLSKey, "tls-key", "", "the PEM `FILE` of the certificate's key")
	sizeVar(f, &o.MaxBody, "max-body", 16<<20, "the longest call, a `SIZE` in bytes, KiB, MiB or GiB")
	o.MaxBodyMemory = memory.Limit()
	f.Int64Var(&o.MaxCalls, "max-calls", 1000, "how many calls may be under way, half of them for each credential")
	f.Int64Var(&o.MaxWaiters, "max-waiters", 20_000, "how many claims may wait, half of them for each credential")
	durationVar(f, &o.StoreTimeout, "store-timeout", storeLimit, "how long the store may take to answer")
	durationVar(f, &o.Drain, "drain", 30*time.Second, "how long calls may take after SIGTERM")
	f.BoolVar(&o.AccessLog, "access-log", false, "log each call")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	complete(cmd, "log-format", "text", "json")
	return cmd
}

// serveStore runs the server until ctx ends.
func (p *program) serveStore(ctx context.Context, o *serving, reload <-chan os.Signal) error {
	url, err := p.storeOf()
	if err != nil {
		return err
	}
	if err := o.validate(); err != nil {
		return err
	}
	store, err := anystore.Open(ctx, url, anystore.ToUse)
	if err != nil {
		return err
	}
	defer store.Close()
	log := server.Logger(p.env.Stderr, o.logFormat, slog.LevelInfo)
	m, err := metrics.NewServer()
	if err != nil {
		return err
	}
	o.Namespace = p.namespace
	var live *survey.Survey
	if in, ok := store.Store.(dibstore.Inspector); ok {
		live = survey.New(in, nil)
		if err := m.Live(live, ownNamespace(p.namespace)); err != nil {
			return err
		}
	}
	running, err := serve.New(o.Config, store.Store, serve.Hooks{Version: version(), StoreName: store.String(), Metrics: m.Handler, Survey: live, StoreCall: m.StoreCall, Call: m.Call, Waiting: m.Waiting, Log: log})
	if err != nil {
		return usagef("%v", err)
	}
	listeners, err := o.open()
	for _, l := range listeners {
		defer l.Close()
	}
	if err != nil {
		return err
	}
	addresses := make([]string, len(listeners))
	for i, l := range listeners {
		if err := running.CheckListener(l.Addr()); err != nil {
			return usagef("%v", err)
		}
		addresses[i] = server.URL(l, o.TLSCert != "")
	}
	where := []string{"url", strings.Join(addresses, " and "), "store", store.String()}
	return p.serveUntil(log, o.logFormat, "dibs serve", where, func() error { return running.Serve(ctx, listeners, reload) })
}

// ownNamespace returns the namespace that the metrics are of; nil, which is all, if it is "".
func ownNamespace(namespace string) *string {
	if namespace == "" {
		return nil
	}
	return &namespace
}

// validate names the flag that is wrong.
func (o *serving) validate() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"max-body", o.MaxBody}, {"max-calls", o.MaxCalls}, {"max-waiters", o.MaxWaiters}, {"store-timeout", int64(o.StoreTimeout)},
	} {
		if f.value <= 0 {
			return usagef("--%s must be more than 0", f.name)
		}
	}
	for _, address := range o.listen {
		if err := proxy.CheckAddress(address); err != nil && !strings.HasPrefix(address, "unix:") {
			return usagef("--listen: %v", err)
		}
	}
	switch {
	case (o.TLSCert == "") != (o.TLSKey == ""):
		return usagef("--tls-cert and --tls-key belong together")
	case o.Act && o.Header == "":
		return usagef("--user-act has no effect without --user-header")
	case o.Drain < 0:
		return usagef("--drain must not be negative")
	case slices.Contains(o.listen, "unix:"):
		return usagef("--listen is unix: without a path; write unix:PATH, such as unix:/run/dibs/dibs.sock")
	case o.logFormat != "text" && o.logFormat != "json":
		return usagef("--log-format: %v", suggest.NoneOf(o.logFormat, "text", "json"))
	}
	return nil
}

// open opens the listeners.
func (o *serving) open() (listeners []net.Listener, err error) {
	mode, err := strconv.ParseUint(o.socketMode, 8, 32)
	if err != nil || mode > 0o777 {
		return nil, usagef("--socket-mode is %q; it must be an octal mode such as 0660", o.socketMode)
	}
	for _, address := range o.listen {
		l, err := server.Listen(address, fs.FileMode(mode))
		if err != nil {
			return listeners, fmt.Errorf("listen: %w", err)
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}
