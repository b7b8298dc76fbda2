package serve

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/internal/leaseapi"
)

// route is a path with its method.
type route struct {
	method, path string
	serve        http.HandlerFunc
}

func (s *Server) routes() []route {
	return []route{
		{"GET", "/healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "alive") }},
		{"GET", "/readyz", s.ready},
		{"GET", "/version", s.guard("", func(w http.ResponseWriter, _ *http.Request, _ *caller) {
			writeText(w, http.StatusOK, "dibs "+s.hooks.Version)
		})},
		{"GET", "/metrics", s.guard(credential.Look, func(w http.ResponseWriter, r *http.Request, _ *caller) { s.hooks.Metrics.ServeHTTP(w, r) })},
		{"GET", leaseapi.Version + "/openapi.json", s.guard("", func(w http.ResponseWriter, _ *http.Request, _ *caller) { s.answer(w, leaseapi.Description) })},
		{"POST", leaseapi.Version + "/claim", s.guarded(credential.Use, false, (*call).claim)},
		{"POST", leaseapi.Version + "/renew", s.guarded(credential.Use, true, (*call).renew)},
		{"POST", leaseapi.Version + "/settle", s.guarded(credential.Use, true, (*call).settle)},
		{"GET", leaseapi.Version + "/keys", s.guard(credential.Look, s.counted(s.list))},
		{"POST", leaseapi.Version + "/keys/release", s.order(release, "id")},
		{"POST", leaseapi.Version + "/keys/forget", s.order(forget, "id")},
		{"POST", leaseapi.Version + "/keys/settle", s.order(resolve, "id", "data", "retention_ms")},
	}
}

// Handler serves all paths.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		mux.HandleFunc(r.method+" "+r.path, r.serve)
		mux.HandleFunc(r.path, func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Allow", r.method)
			refuse(w, req, problemMethod.with("It is "+r.method+"."))
		})
	}
	mux.Handle("GET /{$}", s.page)
	mux.Handle("/page/", s.page)
	mux.HandleFunc("/", s.guard("", func(w http.ResponseWriter, r *http.Request, _ *caller) { refuse(w, r, &problemNotFound) }))
	own := http.NewCrossOriginProtection()
	own.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, problemForbidden.with("A page of another origin may not call this server."))
	}))
	return s.logged(own.Handler(mux))
}

// guard calls h for a call whose credential has the role, or any role if it is "".
func (s *Server) guard(role credential.Role, h func(http.ResponseWriter, *http.Request, *caller)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		by, p := s.credentialOf(r)
		switch {
		case p != nil:
			refuse(w, r, p)
			return
		case role != "" && !by.May(role):
			refuse(w, r, problemForbidden.with(fmt.Sprintf("The credential %s has not the role %s.", by.Name, role)))
			return
		case s.isStopping() && r.Method == http.MethodPost:
			w.Header().Set("Connection", "close")
			refuse(w, r, &problemStopping)
			return
		}
		exchangeOf(r.Context()).by = by.Name
		h(w, r, by)
	}
}

// credentialOf returns the credential of a call.
func (s *Server) credentialOf(r *http.Request) (*caller, *problem) {
	s.mu.RLock()
	tokens := s.tokens
	s.mu.RUnlock()
	if tokens == nil {
		if !local(r) {
			return nil, problemForbidden.with("Without --tokens the server answers calls to its own host only: their Host is localhost or a loopback address.")
		}
		return s.everybody, nil
	}
	if by := find(tokens, bearer(r)); by != nil {
		return by, nil
	}
	return nil, &problemUnauthorized
}

// local reports whether a call names this host. A web page can make a browser call a server
// here under a name of its own (DNS rebinding), and that Host is the page's.
func local(r *http.Request) bool {
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && addr.Network() == "unix" {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.IsLoopback()
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}
