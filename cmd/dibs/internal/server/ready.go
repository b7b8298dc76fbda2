package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store/storekit"
)

// readyLimit is how long the store may take to answer a readiness check.
const readyLimit = 3 * time.Second

// readyFor is for how long an answer of the store is the answer to all checks. They need no
// credential, so they must not be a way to keep the store busy.
const readyFor = time.Second

// Ready is what GET /readyz answers, with 200, while a server is ready.
const Ready = "ready"

// readiness is whether the store grants leases.
type readiness struct {
	mu    sync.Mutex // held while the store is asked: other checks wait for the same answer
	asked time.Time  // zero: never
	ready bool
}

// check asks the store, unless it was asked within readyFor.
func (r *readiness) check(ask func() bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked.IsZero() || time.Since(r.asked) >= readyFor {
		r.ready = ask()
		r.asked = time.Now()
	}
	return r.ready
}

// ready serves GET /readyz.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	needed := s.options.NeedsStore == nil || s.options.NeedsStore()
	switch {
	case s.isStopping():
		WriteText(w, http.StatusServiceUnavailable, "stopping")
	case needed && !s.readiness.check(s.storeClaims):
		WriteText(w, http.StatusServiceUnavailable, "the store does not answer, or refuses claims")
	default:
		WriteText(w, http.StatusOK, Ready)
	}
}

// storeClaims takes a lease and gives it back, for all who check: one that goes away ends nothing.
func (s *Server) storeClaims() bool {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	began := time.Now()
	if err := storekit.Try(ctx, s.options.Store); err != nil {
		s.options.Outage.FailedCheck(err)
		return false
	}
	s.options.Outage.AnsweredSince(began)
	return true
}
