package proxy

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/page"
)

// Admin is what the admin address needs of the program.
type Admin struct {
	Version string
	Metrics func(namespace *string) http.Handler
	// Observe is called for each request.
	Observe func(context.Context, idempotency.Event)
	// Store is the client's, for readiness and for the page for operators. StoreName and Traffic
	// are for the page.
	Store     dibs.Store
	StoreName string
	Traffic   *page.Traffic
}

// shellOptions returns those of the proxy's server.
func (s *Server) shellOptions(c *Config) *server.Options {
	o := &server.Options{Log: s.log, Outage: s.store, TLSCert: c.TLSCert, TLSKey: c.TLSKey}
	if a := s.admin; a != nil {
		o.Version, o.Store, o.Metrics, o.NeedsStore = a.Version, a.Store, a.Metrics, s.needsStore
		o.SingleSignOn, o.Namespace, o.Public, o.Refuse = c.users(), &c.Namespace, true, refuseAdmin
		o.Page = page.Options{StoreName: a.StoreName, Namespace: &c.Namespace, Traffic: a.Traffic, ShowBodies: c.AdminShowBodies}
	}
	return o
}

// adminHandler serves what every server has, and POST /reload.
func (s *Server) adminHandler() http.Handler {
	return s.shell.Handler(server.Post("/reload", s.shell.Guard(credential.Act, func(w http.ResponseWriter, _ *http.Request, _ *credential.Credential) {
		if err := s.reload(); err != nil {
			server.WriteText(w, http.StatusUnprocessableEntity, err.Error())
			return
		}
		server.WriteText(w, http.StatusOK, "the configuration was reloaded")
	})))
}

// refuseAdmin answers a request at the admin address.
func refuseAdmin(w http.ResponseWriter, _ *http.Request, status int, detail string) {
	reasons := map[int]string{
		http.StatusUnauthorized: "send a token of admin-tokens, as Authorization: Bearer TOKEN", http.StatusNotFound: "there is nothing at this path", http.StatusServiceUnavailable: "stopping",
	}
	server.WriteText(w, status, cmp.Or(detail, reasons[status]))
}

// needsStore reports whether guarded requests are refused while the store does not answer.
func (s *Server) needsStore() bool {
	refuses := func(r Route) bool { return r.OnStoreFailure != idempotency.FailOpen }
	return slices.ContainsFunc(s.config().guarded(), refuses)
}
