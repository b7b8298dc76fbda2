package serve

import (
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
	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/survey"
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

	MaxBody             int64 // bytes of a call
	MaxBodyMemory       int64 // bytes that the bodies, elements and records of all calls may take; see memory.Limit
	MaxCalls            int64 // calls under way, half of them for each credential
	MaxWaiters          int64 // claims that wait, half of them for each credential
	StoreTimeout, Drain time.Duration
	AccessLog           bool
	TLSCert, TLSKey     string
}

// Hooks are what a server tells the program.
type Hooks struct {
	Version   string
	StoreName string                               // what the page calls the store
	Metrics   func(namespace *string) http.Handler // serves the metrics of a namespace; nil: of all
	Survey    *survey.Survey                       // what Metrics are taken from, of all namespaces; nil: the page has its own
	StoreCall func(dibs.StoreCall)                 // after each call of the store
	Call      func(Call)                           // after each call; nil is fine
	Waiting   func(claims int64)                   // how many more claims wait, or fewer; nil is fine
	Log       *slog.Logger
}

// Server serves a store. Make one with New.
type Server struct {
	config Config
	hooks  Hooks
	log    *slog.Logger
	store  dibs.Store

	calls       dibs.Store // the store, observed
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
	shell       *server.Server
	traffic     page.Traffic
	loads       sync.Map // what each caller has under way, by its name
}

// New returns a server of the store. The error names the setting that is wrong.
func New(c Config, under dibs.Store, h Hooks) (*Server, error) {
	s := &Server{config: c, hooks: h, log: h.Log, store: under, outage: outage.New(h.Log, "calls"), limits: defaultLimits, load: newLoad(c.MaxBodyMemory)}
	s.records.large = c.MaxBodyMemory / 1024
	if err := (dibs.Key{Namespace: c.Namespace, Name: "-"}).Validate(); err != nil {
		return nil, err
	}
	var only *string
	if c.Namespace != "" {
		only = &c.Namespace
	}
	var err error
	if s.shell, err = server.New(&server.Options{
		Version: h.Version, Log: h.Log, Outage: s.outage, TLSCert: c.TLSCert, TLSKey: c.TLSKey,
		Store: under, Metrics: h.Metrics, SingleSignOn: c.SingleSignOn, Namespace: only, Refuse: refuseStatus,
		Page: page.Options{StoreName: h.StoreName, Traffic: &s.traffic, Survey: h.Survey, ShowBodies: c.ShowBodies},
		By:   func(r *http.Request, name string) { exchangeOf(r.Context()).by = name },
	}); err != nil {
		return nil, err
	}
	if err := s.readTokens(); err != nil {
		return nil, fmt.Errorf("--tokens: %w", err)
	}
	var b store.Batching
	if batcher, ok := under.(store.Batcher); ok {
		b = batcher.Batching()
	}
	ctx := context.Background()
	s.calls = outage.Observe(under, s.outage, func(o outage.Call) {
		s.traffic.StoreCall(dibs.StoreCall(o))
		if s.hooks.StoreCall != nil {
			s.hooks.StoreCall(dibs.StoreCall(o))
		}
	})
	s.claims = batch.New(ctx, batch.Options(b), c.StoreTimeout, s.carry)
	s.renewals = batch.New(ctx, batch.Options(b), c.StoreTimeout, s.calls.Renew)
	s.settlements = batch.New(ctx, batch.Options(b), c.StoreTimeout, s.calls.Settle)
	s.waiters = newWaiters(func(r store.Renewal) {
		_, _, _ = s.renewals.Do(ctx, nil, r, nil) // if it fails, the client asks in time or finds its turn over
	})
	if r, ok := under.(store.Relayer); ok {
		r.Relay()
	}
	s.unnotify = func() {}
	if n, ok := under.(store.Notifier); ok {
		s.notified, s.unnotify = true, n.Notify(s.waiters.wake)
	}
	return s, nil
}

// readTokens reads the file of tokens. Calls under way keep the credential that they had.
func (s *Server) readTokens() error {
	if s.config.Tokens == "" {
		return nil
	}
	all, err := credential.Read(s.config.Tokens)
	if err == nil {
		s.shell.UseTokens(all)
	}
	return err
}

// CheckListener returns an error if other hosts could reach the server without a credential.
func (s *Server) CheckListener(l net.Addr) error { return s.shell.CheckListener(l) }

// Serve serves on the listeners until ctx is cancelled. Then it accepts no new calls, answers
// the calls that wait, and waits at most Config.Drain for all others. A signal from reload
// makes it read the tokens again.
func (s *Server) Serve(ctx context.Context, listeners []net.Listener, reload <-chan os.Signal) error {
	defer s.unnotify()
	return s.shell.Serve(ctx, server.Life{
		Reload: s.reload,
		Times:  func() (delay, drain time.Duration) { return 0, s.config.Drain },
	}, reload, server.Door{Server: &http.Server{Handler: s.Handler(), ConnContext: withConnection}, Listeners: listeners})
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

// failed notes that the store did not answer.
func (s *Server) failed(err error) {
	if !errors.Is(err, batch.ErrGaveUp) && !errors.Is(err, context.Canceled) {
		s.outage.Failed(err)
	}
}
