// Package server is the shell of dibs serve and of dibs proxy's admin address: listeners, TLS, the
// end, readiness, who may do what, and the paths that both have. What a program does with its own
// requests is the program's.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/certificate"
	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/quantity"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/store"
)

// Options configures a Server.
type Options struct {
	Version         string
	Log             *slog.Logger
	Outage          *outage.Log
	TLSCert, TLSKey string // files; "" for none

	// Store is for readiness and for the page. Without one there is no Handler.
	Store store.Store
	// NeedsStore reports whether the program is not ready while the store does not answer. Default:
	// it always is not.
	NeedsStore func() bool
	// Metrics serves the metrics of a namespace; nil: of all.
	Metrics func(namespace *string) http.Handler
	// Page has the page's StoreName, Namespace, Traffic and ShowBodies.
	Page page.Options
	// SingleSignOn is the gateway in front of the server. Its users may look, and maybe act.
	SingleSignOn page.SingleSignOn
	// Namespace is that of the gateway's users and of requests from this host; nil: any.
	Namespace *string
	// Public lets requests without a credential do everything but see the page, unless there is a
	// single sign-on. They must name the server by what no other site can be named.
	Public bool
	// Refuse answers a request with a status from 400. The detail may be "".
	Refuse func(w http.ResponseWriter, r *http.Request, status int, detail string)
	// By is told who sends a request. Default: nothing is.
	By func(r *http.Request, name string)
}

// Server is the shell. Make one with New.
type Server struct {
	options   Options
	log       *slog.Logger
	secure    *certificate.Certificate // nil without TLS
	page      *page.Handler
	readiness readiness
	local     *credential.Credential                   // of requests that need none
	tokens    atomic.Pointer[[]*credential.Credential] // nil: there is no file of them
	stop      sync.Once
	stopping  chan struct{}
}

// New returns a server. The error is that of the certificate.
func New(o *Options) (*Server, error) {
	s := &Server{options: *o, log: o.Log, stopping: make(chan struct{}), local: credentialOf("local", o.Namespace, credential.All...)}
	if o.TLSCert != "" {
		var err error
		if s.secure, err = certificate.New(o.TLSCert, o.TLSKey, o.Log); err != nil {
			return nil, err
		}
	}
	if o.Store != nil {
		shown := o.Page
		shown.Viewer, shown.SignIn, shown.Logger = s.viewer, s.signIn, o.Log
		s.page = page.New(o.Store, &shown)
	}
	return s, nil
}

// Life is what a program does at the turns of a server's life. Each function can be nil but Times.
type Life struct {
	Reload func()                              // with each signal to reload
	Times  func() (delay, drain time.Duration) // how long it accepts requests when it ends, and then waits for them
	Wait   func(context.Context) error         // waits for what http.Server.Shutdown does not wait for
	Ended  func(context.Context)               // all connections are closed
}

// Door is an http.Server and where it listens. What is not set in it is set as all servers have it.
type Door struct {
	*http.Server
	Listeners []net.Listener
	Plain     bool // without TLS, as Unix sockets always are
	Lasts     bool // it serves until the end of the drain
}

// Serve serves until ctx is cancelled. Then it is not ready, and accepts requests for a delay. After
// that it waits for the requests under way, and aborts those that take too long.
func (s *Server) Serve(ctx context.Context, life Life, reload <-chan os.Signal, doors ...Door) error {
	failed := make(chan error)
	over := make(chan struct{})
	defer close(over)
	for _, d := range doors {
		s.prepare(d)
		defer d.Close()
		for _, l := range d.Listeners {
			go func() {
				select {
				case failed <- s.accept(d, l):
				case <-over:
				}
			}()
		}
	}
	ended, delayed := ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case err := <-failed:
			return err
		case <-reload:
			life.Reload()
		case <-ended:
			s.Stop()
			delay, drain := life.Times()
			s.log.Info("the server drains: it ends when the requests under way are answered",
				"drain_delay", quantity.DurationText(delay), "drain", quantity.DurationText(drain))
			ended, delayed = nil, time.After(delay)
		case <-delayed:
			err := s.drain(life, doors)
			s.log.Info("the server has ended")
			return err
		}
	}
}

const (
	// headerLimit bounds how long a client may take to send a request's header.
	headerLimit = 30 * time.Second
	// idleLimit is how long a connection can be open without a request.
	idleLimit = 2 * time.Minute
	// maxHeader is how long a header can be, in bytes, unless the program has another bound.
	maxHeader = 16 << 10
)

// prepare sets what all servers have.
func (s *Server) prepare(d Door) {
	d.ReadHeaderTimeout, d.IdleTimeout = headerLimit, idleLimit
	if d.MaxHeaderBytes == 0 {
		d.MaxHeaderBytes = maxHeader
	}
	d.ErrorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)
	d.Protocols = new(http.Protocols)
	d.Protocols.SetHTTP1(true)
	d.Protocols.SetHTTP2(true)
	d.Protocols.SetUnencryptedHTTP2(true)
	if s.isSecure(d) {
		d.TLSConfig = s.secure.Config()
	}
}

// isSecure reports whether a door has TLS. TLSConfig does not say it, because net/http sets that of every
// server.
func (s *Server) isSecure(d Door) bool { return s.secure != nil && !d.Plain }

// accept serves the connections of a listener.
func (s *Server) accept(d Door, l net.Listener) error {
	if s.isSecure(d) && l.Addr().Network() != "unix" {
		return d.ServeTLS(l, "", "")
	}
	return d.Serve(l)
}

// drain waits for the requests under way.
func (s *Server) drain(life Life, doors []Door) error {
	if s.page != nil {
		s.page.Close()
	}
	_, limit := life.Times()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var err error
	for _, d := range doors {
		if !d.Lasts {
			err = errors.Join(err, d.Shutdown(ctx))
		}
	}
	if err == nil && life.Wait != nil { // otherwise new requests may come
		err = life.Wait(ctx)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("requests were aborted, because they took longer than --drain", "drain", quantity.DurationText(limit))
		err = nil
	}
	for _, d := range doors {
		if !d.Lasts {
			d.Close()
		}
	}
	if life.Ended != nil {
		life.Ended(ctx)
	}
	return err
}

// Stop makes the server not ready. Calls that would change something are refused.
func (s *Server) Stop() { s.stop.Do(func() { close(s.stopping) }) }

// Stopping is closed when the server stops.
func (s *Server) Stopping() <-chan struct{} { return s.stopping }

// isStopping reports whether the server stops.
func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}
