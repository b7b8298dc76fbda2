package serve

import (
	"net/http"

	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/internal/leaseapi"
)

// paths are those of the lease API.
func (s *Server) paths() []server.Path {
	return []server.Path{
		server.Get(leaseapi.Version+"/openapi.json", s.guard("", func(w http.ResponseWriter, _ *http.Request, _ *caller) { s.answer(w, leaseapi.Description) })),
		server.Post(leaseapi.Version+"/claim", s.guarded(credential.Use, false, (*call).claim)),
		server.Post(leaseapi.Version+"/renew", s.guarded(credential.Use, true, (*call).renew)),
		server.Post(leaseapi.Version+"/settle", s.guarded(credential.Use, true, (*call).settle)),
		server.Get(leaseapi.Version+"/keys", s.guard(credential.Look, s.counted(s.list))),
		server.Post(leaseapi.Version+"/keys/release", s.order(release, "id")),
		server.Post(leaseapi.Version+"/keys/forget", s.order(forget, "id")),
		server.Post(leaseapi.Version+"/keys/resolve", s.order(resolve, "id", "data", "retention_ms")),
	}
}

// Handler serves all paths.
func (s *Server) Handler() http.Handler { return s.logged(s.shell.Handler(s.paths()...)) }

// guard calls h for a call whose credential has the role, or any role if it is "".
func (s *Server) guard(role credential.Role, h func(http.ResponseWriter, *http.Request, *caller)) http.HandlerFunc {
	return s.shell.Guard(role, func(w http.ResponseWriter, r *http.Request, by *credential.Credential) {
		h(w, r, &caller{by, s.loadOf(by)})
	})
}

// loadOf returns what a credential has under way. The one of a server that needs none may take all.
func (s *Server) loadOf(by *credential.Credential) *load {
	under, ok := s.loads.Load(by.Name)
	if !ok {
		one := s.config.loadOfOne()
		if s.shell.IsOpen() {
			one = newLoad(s.config.MaxBodyMemory)
		}
		under, _ = s.loads.LoadOrStore(by.Name, one)
	}
	return under.(*load)
}

// caller is a credential, and what it has under way.
type caller struct {
	*credential.Credential
	load *load
}

// refuseStatus answers a call that the shell refuses.
func refuseStatus(w http.ResponseWriter, r *http.Request, status int, detail string) {
	p := *map[int]*problem{
		http.StatusUnauthorized: &problemUnauthorized, http.StatusForbidden: &problemForbidden, http.StatusNotFound: &problemNotFound,
		http.StatusMethodNotAllowed: &problemMethod, http.StatusServiceUnavailable: &problemStopping,
	}[status]
	if detail != "" {
		p.Detail = detail
	}
	refuse(w, r, &p)
}
