package page

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// CookieName is the cookie with the token of a viewer who has signed in.
const CookieName = "dibs_page"

// Token returns the token that a request has: of the header Authorization, or else of the cookie.
// It is "" if there is none.
func Token(r *http.Request) string {
	if scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	if c, err := r.Cookie(CookieName); err == nil {
		return c.Value
	}
	return ""
}

// OnThisHost is the viewer of a request from this host to a name of this host. A web page can make
// a browser call a server here under a name of its own (DNS rebinding), and Host is that name.
// It returns nil for every other request.
func OnThisHost(r *http.Request) *Viewer {
	local := func(hostport string) bool {
		host := hostport
		if name, _, err := net.SplitHostPort(hostport); err == nil {
			host = name
		}
		ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
		return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
	}
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && addr.Network() == "unix" {
		return &Viewer{Name: "local", Act: true}
	}
	if local(r.RemoteAddr) && local(r.Host) {
		return &Viewer{Name: "local", Act: true}
	}
	return nil
}

// SingleSignOn is a gateway in front of the page that has signed its users in. It must be the only
// way to the page, and remove the header from what its users send.
type SingleSignOn struct {
	Header string // with the name of the user, such as X-Forwarded-User; "": there is no gateway
	Act    bool   // its users may act; otherwise they may only look
}

// Viewer returns the user of a request, for Options.Viewer; nil if there is none.
func (s SingleSignOn) Viewer(r *http.Request) *Viewer {
	if s.Header == "" {
		return nil
	}
	names := r.Header.Values(s.Header)
	if len(names) != 1 || names[0] == "" || len(names[0]) > 256 {
		return nil
	}
	return &Viewer{Name: names[0], Act: s.Act}
}

// signIn sets the cookie of a token.
func (h *Handler) signIn(w http.ResponseWriter, r *http.Request) {
	var form struct{ Token string }
	if !read(w, r, maxSignIn, &form) {
		return
	}
	token := strings.TrimSpace(form.Token)
	if h.options.SignIn == nil || (&http.Cookie{Name: CookieName, Value: token}).Valid() != nil || h.options.SignIn(token) == nil {
		fail(w, http.StatusUnauthorized, "The token is unknown, or it may not look.")
		return
	}
	http.SetCookie(w, cookie(r, token, 0))
	w.WriteHeader(http.StatusNoContent)
}

// signOut deletes the cookie.
func (h *Handler) signOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, cookie(r, "", -1))
	w.WriteHeader(http.StatusNoContent)
}

// cookie returns a cookie that ends with the browser, and that no script and no other site can use.
func cookie(r *http.Request, token string, age int) *http.Cookie {
	return &http.Cookie{
		Name: CookieName, Value: token, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	}
}
