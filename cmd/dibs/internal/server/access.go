package server

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/page"
)

// Who may act is decided here, for all paths of both programs:
//
//	a token of the file           its roles, in its namespace
//	a user of the single sign-on  may look, and act if its users may
//	a request of this host        everything, where there is neither a file nor a single sign-on
//
// A browser that has signed in with a token has a cookie, which is for the page alone.

// UseTokens sets the credentials of the file; nil: there is no file.
func (s *Server) UseTokens(all []*credential.Credential) { s.tokens.Store(&all) }

func (s *Server) credentials() []*credential.Credential {
	if all := s.tokens.Load(); all != nil {
		return *all
	}
	return nil
}

// IsOpen reports whether requests of this host need no credential.
func (s *Server) IsOpen() bool {
	return s.credentials() == nil && s.options.SingleSignOn.Header == ""
}

// who returns the sender of a request; nil if it is unknown.
func (s *Server) who(r *http.Request) (c *credential.Credential) {
	c = credential.Find(s.credentials(), bearer(r))
	if c == nil {
		c = s.user(r)
	}
	if c == nil && s.IsOpen() && page.OnThisHost(r) != nil {
		c = s.local
	}
	return c
}

// user returns the user of the single sign-on.
func (s *Server) user(r *http.Request) *credential.Credential {
	v := s.options.SingleSignOn.Viewer(r)
	if v == nil {
		return nil
	}
	roles := []credential.Role{credential.Look}
	if v.Act {
		roles = append(roles, credential.Act)
	}
	return credentialOf(v.Name, s.options.Namespace, roles...)
}

// credentialOf returns a credential of a namespace; nil: of any.
func credentialOf(name string, namespace *string, roles ...credential.Role) *credential.Credential {
	c := &credential.Credential{Name: name, Free: namespace == nil, Roles: roles}
	if namespace != nil {
		c.Namespace = *namespace
	}
	return c
}

// viewer returns who looks at the page; nil if nobody who may.
func (s *Server) viewer(r *http.Request) *page.Viewer {
	c := credential.FindSession(s.credentials(), page.Session(r), time.Now())
	if c == nil {
		c = s.who(r)
	}
	if c == nil || !c.May(credential.Look) {
		return nil
	}
	s.by(r, c)
	return &page.Viewer{Name: c.Name, Act: c.May(credential.Act), Namespace: c.Only()}
}

// signIn returns the cookie for a token; "" if it may not look.
func (s *Server) signIn(token string) string {
	c := credential.Find(s.credentials(), token)
	if c == nil || !c.May(credential.Look) {
		return ""
	}
	return c.Session(time.Now())
}

func (s *Server) by(r *http.Request, c *credential.Credential) {
	if s.options.By != nil {
		s.options.By(r, c.Name)
	}
}

// bearer returns the token of a request; "" if there is none.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// Guard calls h for a request whose sender has the role, or any role if it is "".
func (s *Server) Guard(role credential.Role, h func(http.ResponseWriter, *http.Request, *credential.Credential)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		by := s.who(r)
		if by == nil && s.isPublic(r, role) {
			by = s.local
		}
		switch {
		case by == nil && !s.IsOpen():
			s.options.Refuse(w, r, http.StatusUnauthorized, "")
		case by == nil && s.options.Public:
			s.options.Refuse(w, r, http.StatusForbidden, "A request without a credential must name the server by its address or by a name that is not public, and to act, no proxy may have passed it on.")
		case by == nil:
			s.options.Refuse(w, r, http.StatusForbidden, "Without --tokens the server answers calls of its own host only: their Host is localhost or a loopback address, and no proxy has passed them on.")
		case s.isForeign(by):
			s.options.Refuse(w, r, http.StatusForbidden, "The credential is for another namespace than the server.")
		case role != "" && !by.May(role):
			s.options.Refuse(w, r, http.StatusForbidden, fmt.Sprintf("The credential %s does not have the role %s.", by.Name, role))
		case s.isStopping() && r.Method == http.MethodPost:
			w.Header().Set("Connection", "close")
			s.options.Refuse(w, r, http.StatusServiceUnavailable, "")
		default:
			s.by(r, by)
			h(w, r, by)
		}
	}
}

// isForeign reports whether a credential is for another namespace than the only one of the program.
func (s *Server) isForeign(c *credential.Credential) bool {
	only, its := s.options.Page.Namespace, c.Only()
	return only != nil && its != nil && *only != *its
}

// isPublic reports whether a request needs no credential, from whatever host it comes. The sidecar of a
// mesh passes on the scrapes of metrics, too, so only what acts may not be passed on.
func (s *Server) isPublic(r *http.Request, role credential.Role) bool {
	return s.options.Public && s.options.SingleSignOn.Header == "" && isOwnName(r.Host) && (role != credential.Act || !page.Forwarded(r))
}

// privateSuffixes end names that the public DNS does not have.
var privateSuffixes = []string{".localhost", ".local", ".internal", ".svc", ".home.arpa"}

// isOwnName reports whether a Host cannot be the name of another site, to which a browser on the way
// to it was sent here (DNS rebinding): it is an address, or a name that the public DNS does not have.
func isOwnName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	return host != "" && !strings.Contains(host, ".") || slices.ContainsFunc(privateSuffixes, func(suffix string) bool { return strings.HasSuffix(host, suffix) })
}

// CheckListener returns an error if other hosts could reach the server without a credential.
func (s *Server) CheckListener(l net.Addr) error {
	if s.credentials() != nil || l.Network() == "unix" {
		return nil
	}
	if a, ok := l.(*net.TCPAddr); ok && a.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s can be reached from other hosts, so it needs credentials: name a file of them with --tokens, or listen on 127.0.0.1 or on unix:PATH", l)
}
