package proxy

import (
	"context"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/store/backend"
)

// readyLimit is how long the store may take to answer a readiness check.
const readyLimit = 3 * time.Second

// Admin is what the admin address needs of the program.
type Admin struct {
	Version string
	Metrics http.Handler
	// Observe is called for each request.
	Observe func(context.Context, idempotency.Event)
	// Store is the client's, for readiness and for the page for operators. StoreName and Traffic
	// are for the page.
	Store     dibs.Store
	StoreName string
	Traffic   *page.Traffic
}

// adminHandler serves /healthz (the process is alive), /readyz (it is not about to end and, if it
// needs the store, the store grants leases), /version, /metrics, POST /reload, and the page for operators
// at /.
func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "alive")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if s.stopping.Load() {
			writeText(w, http.StatusServiceUnavailable, "stopping")
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), readyLimit)
		defer cancel()
		if err := s.askStore(ctx); err != nil {
			writeText(w, http.StatusServiceUnavailable, "the store does not answer, or refuses claims")
			return
		}
		writeText(w, http.StatusOK, "ready")
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "dibs "+s.admin.Version)
	})
	mux.Handle("GET /metrics", s.admin.Metrics)
	mux.HandleFunc("POST /reload", func(w http.ResponseWriter, _ *http.Request) {
		if s.stopping.Load() {
			writeText(w, http.StatusServiceUnavailable, "stopping")
			return
		}
		if err := s.reload(); err != nil {
			writeText(w, http.StatusUnprocessableEntity, err.Error())
			return
		}
		writeText(w, http.StatusOK, "the configuration was reloaded")
	})
	mux.Handle("GET /{$}", s.page)
	mux.Handle("/page/", s.page)
	// A page in a browser of this host must not reload the proxy.
	return http.NewCrossOriginProtection().Handler(mux)
}

// viewer returns who looks at the page; nil if nobody who may. Without tokens these are browsers on
// this host.
func (s *Server) viewer(r *http.Request) *page.Viewer {
	v := s.signIn(page.Token(r))
	if v == nil {
		v = s.config().AdminUsers.Viewer(r)
	}
	if v == nil && s.config().AdminTokens == "" {
		v = page.OnThisHost(r)
	}
	return v
}

// signIn returns the viewer with a token of the file.
func (s *Server) signIn(token string) *page.Viewer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c := credential.Find(s.current.tokens, token)
	if c == nil || !c.May(credential.Look) {
		return nil
	}
	return &page.Viewer{Name: c.Name, Namespace: &c.Namespace, Act: c.May(credential.Act)}
}

// askStore returns an error if guarded requests are refused now, because the store does not
// answer or takes no writes. Other proxies may reach it.
func (s *Server) askStore(ctx context.Context) error {
	refuses := func(r Route) bool { return r.Options.OnStoreFailure != idempotency.FailOpen }
	if !slices.ContainsFunc(s.config().guarded(), refuses) {
		return nil
	}
	began := time.Now()
	err := backend.Try(ctx, s.admin.Store)
	switch {
	case err == nil:
		s.store.AnsweredSince(began)
	case ctx.Err() != context.Canceled: // otherwise the client went away
		s.store.FailedCheck(err)
	}
	return err
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}
