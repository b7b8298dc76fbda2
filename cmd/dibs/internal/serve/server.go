package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/certificate"
	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/store"
)

// Config is how a server serves. The zero values of the bounds are not valid; the command has
// the defaults.
type Config struct {
	Namespace string // of calls that need no credential; "" lets them name any
	Tokens    string // the file of credentials; "" for none

	page.SingleSignOn      // of the page for operators
	ShowBodies        bool // on the page

	MaxBody                    int64 // bytes of a call
	MaxBodyMemory              int64 // bytes that the bodies, elements and records of all calls may take; see memory.Limit
	MaxCalls, MaxCallsEach     int64 // calls under way, in all and for each credential
	MaxWaiters, MaxWaitersEach int64 // claims that wait
	StoreTimeout, Drain        time.Duration
	AccessLog                  bool
	TLSCert, TLSKey            string
}

// Hooks are what a server tells the program.
type Hooks struct {
	Version   string
	StoreName string               // what the page calls the store
	Metrics   http.Handler         // serves /metrics
	StoreCall func(dibs.StoreCall) // after each call of the store
	Call      func(Call)           // after each call; nil is fine
	Waiting   func(claims int64)   // how many more claims wait, or fewer; nil is fine
	Log       *slog.Logger
}

// Server serves a store. Make one with New.
type Server struct {
	config Config
	hooks  Hooks
	log    *slog.Logger
	store  dibs.Store

	size        int                                                        // how many elements a call of the store may have
	send        func(context.Context, []store.Claim, []store.Answer) error // observed, as the next two
	renewAll    func(context.Context, []store.Renewal, []error) error
	settleAll   func(context.Context, []store.Settlement, []error) error
	claims      *batch.Batcher[question, store.Answer]
	renewals    *batch.Batcher[store.Renewal, error]
	settlements *batch.Batcher[store.Settlement, error]
	notified    bool // the store wakes waiters
	unnotify    func()
	waiters     *waiters
	load        *load
	records     sizer
	limits      limits
	outage      *outage.Log
	readiness   readiness
	page        *page.Handler
	traffic     page.Traffic

	secure *certificate.Certificate // nil without TLS

	stop     sync.Once
	stopping chan struct{}

	mu        sync.RWMutex
	tokens    []*caller // under mu; nil: none is needed
	everybody *caller   // what calls have where none is needed
}

// New returns a server of the store. The error names the setting that is wrong.
func New(c Config, under dibs.Store, h Hooks) (*Server, error) {
	load := newLoad(c.MaxBodyMemory)
	s := &Server{config: c, hooks: h, log: h.Log, store: under, outage: outage.New(h.Log, "calls"), limits: defaultLimits, stopping: make(chan struct{}), load: load, everybody: everybody(c.Namespace, c.MaxBodyMemory)}
	s.records.large = c.MaxBodyMemory / 1024
	if err := (dibs.Key{Namespace: c.Namespace, Name: "-"}).Validate(); err != nil {
		return nil, err
	}
	if c.Tokens != "" {
		if err := s.readTokens(); err != nil {
			return nil, fmt.Errorf("--tokens: %w", err)
		}
	}
	if c.TLSCert != "" {
		var err error
		if s.secure, err = certificate.New(c.TLSCert, c.TLSKey, h.Log); err != nil {
			return nil, err
		}
	}
	var b store.Batching
	if batcher, ok := under.(store.Batcher); ok {
		b = batcher.Batching()
	}
	s.size = cmp.Or(b.Size, batch.DefaultSize)
	ctx := context.Background()
	s.send = observed(s, "claim", under.Claim, func(a store.Answer) error { return a.Err })
	s.renewAll = observed(s, "renew", under.Renew, itself)
	s.settleAll = observed(s, "settle", under.Settle, itself)
	s.claims = batch.New(ctx, batch.Options(b), c.StoreTimeout, s.carry)
	s.renewals = batch.New(ctx, batch.Options(b), c.StoreTimeout, s.renewAll)
	s.settlements = batch.New(ctx, batch.Options(b), c.StoreTimeout, s.settleAll)
	s.waiters = newWaiters(func(r store.Renewal) {
		_, _, _ = s.renewals.Do(ctx, nil, r, nil) // if it fails, the client asks in time or finds its turn over
	})
	s.page = page.New(under, &page.Options{StoreName: h.StoreName, Viewer: s.viewer, SignIn: s.signIn, Traffic: &s.traffic, ShowBodies: c.ShowBodies, Logger: s.log})
	if r, ok := under.(store.Relayer); ok {
		r.Relay()
	}
	s.unnotify = func() {}
	if n, ok := under.(store.Notifier); ok {
		s.notified, s.unnotify = true, n.Notify(s.waiters.wake)
	}
	return s, nil
}

// itself returns why a renewal or a settlement failed alone.
func itself(err error) error { return err }

// observed reports each call of the store. alone returns why an element failed alone.
func observed[Q, A any](s *Server, verb string, send func(context.Context, []Q, []A) error, alone func(A) error) func(context.Context, []Q, []A) error {
	return func(ctx context.Context, q []Q, a []A) error {
		began := time.Now()
		err := send(ctx, q, a)
		c := dibs.StoreCall{Verb: verb, Size: len(q), Took: time.Since(began)}
		c.Err = outage.StoreFault(err, len(q), func(i int) error { return alone(a[i]) })
		s.traffic.StoreCall(c)
		if s.hooks.StoreCall != nil {
			s.hooks.StoreCall(c)
		}
		return err
	}
}

// readTokens reads the file of tokens. Calls under way keep the credential that they had.
func (s *Server) readTokens() error {
	all, err := credential.Read(s.config.Tokens)
	if err != nil {
		return err
	}
	tokens := make([]*caller, len(all))
	for i, c := range all {
		tokens[i] = &caller{Credential: c, load: s.config.loadOfOne()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tokens {
		for _, old := range s.tokens {
			if old.Name == t.Name {
				t.load = old.load
			}
		}
	}
	s.tokens = tokens
	return nil
}

// CheckListener returns an error if everybody could reach the server without a credential.
func (c *Config) CheckListener(l net.Addr) error {
	if c.Tokens != "" || l.Network() == "unix" {
		return nil
	}
	if a, ok := l.(*net.TCPAddr); ok && a.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s can be reached from other hosts, so it needs credentials: name a file of them with --tokens, or listen on 127.0.0.1 or on unix:PATH", l)
}

// headerLimit bounds how long a client may take to send a request's header.
const headerLimit = 30 * time.Second

// Serve serves on the listeners until ctx is cancelled. Then it accepts no new calls, answers
// the calls that wait, and waits at most Config.Drain for all others. A signal from reload
// makes it read the tokens again.
func (s *Server) Serve(ctx context.Context, listeners []net.Listener, reload <-chan os.Signal) error {
	defer s.unnotify()
	server := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: headerLimit,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		Protocols:         new(http.Protocols),
		ConnContext:       withConnection,
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		if s.secure != nil && l.Addr().Network() != "unix" {
			server.TLSConfig = s.secure.Config()
			go func() { failed <- server.ServeTLS(l, "", "") }()
			continue
		}
		go func() { failed <- server.Serve(l) }()
	}
	for {
		select {
		case err := <-failed:
			server.Close()
			return err
		case <-reload:
			s.reload()
		case <-ctx.Done():
			return s.drain(server)
		}
	}
}

// reload reads the tokens again. If they are wrong, the old ones stay.
func (s *Server) reload() {
	if s.config.Tokens == "" {
		return
	}
	if err := s.readTokens(); err != nil {
		s.log.Error("the new tokens are wrong; the old ones stay in use", "error", err)
		return
	}
	s.log.Info("the tokens were read again", "file", s.config.Tokens)
}

// drain ends the server.
func (s *Server) drain(server *http.Server) error {
	s.stop.Do(func() { close(s.stopping) })
	s.log.Info("the server drains: it ends when the calls under way are answered", "drain", s.config.Drain.String())
	s.page.Close()
	ctx, cancel := context.WithTimeout(context.Background(), s.config.Drain)
	defer cancel()
	err := server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("calls were cut off, because they took longer than --drain", "drain", s.config.Drain.String())
		err = nil
	}
	server.Close()
	s.log.Info("the server has ended")
	return err
}

// isStopping reports whether the server drains.
func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// failed notes that the store did not answer.
func (s *Server) failed(err error) {
	if !errors.Is(err, batch.ErrGaveUp) && !errors.Is(err, context.Canceled) {
		s.outage.Failed(err)
	}
}
