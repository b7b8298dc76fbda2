package proxy

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/store"
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
	Survey    *survey.Survey // what Metrics are taken from; nil: the store cannot list
}

// shellOptions returns those of the proxy's server.
func (s *Server) shellOptions(c *Config) *server.Options {
	o := &server.Options{Log: s.log, Outage: s.store, TLSCert: c.TLSCert, TLSKey: c.TLSKey}
	if a := s.admin; a != nil {
		o.Version, o.Store, o.Metrics, o.NeedsStore = a.Version, a.Store, a.Metrics, s.needsStore
		o.SingleSignOn, o.Namespace, o.Public, o.Refuse = c.users(), &c.Namespace, true, refuseAdmin
		o.Page = page.Options{StoreName: a.StoreName, Namespace: &c.Namespace, Traffic: a.Traffic, Survey: a.Survey, Encrypt: s.encrypt, ShowBodies: c.AdminShowBodies}
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

// encrypt returns what is stored of an answer that an operator gives to a request's key: what the
// middleware of the routes stores.
func (s *Server) encrypt(key store.Key, retention time.Duration, answer []byte) ([]byte, error) {
	routes := s.config().guarded()
	for _, r := range routes {
		if r.KeyRing != routes[0].KeyRing {
			return nil, errSeveralRings
		}
	}
	if len(routes) == 0 {
		return answer, nil
	}
	return routes[0].ring.Encrypt(key, store.Fingerprint{}, retention, answer), nil
}

// A key does not say which route it is of.
var errSeveralRings = errors.New("the routes of this proxy have different key rings; use dibs resolve --key-ring with the ring of the request's route")

// needsStore reports whether guarded requests are refused while the store does not answer.
func (s *Server) needsStore() bool {
	refuses := func(r Route) bool { return r.OnStoreFailure != idempotency.FailOpen }
	return slices.ContainsFunc(s.config().guarded(), refuses)
}
