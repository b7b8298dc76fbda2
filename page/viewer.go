package page

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// CookieName is the cookie of a viewer after its sign-in. Over TLS its name begins with SecurePrefix, so
// that only this host can have set it (RFC 6265bis).
const (
	CookieName   = "dibs_page"
	SecurePrefix = "__Host-"
)

// Session returns the value of the cookie that a request has, which Options.SignIn made; "" if there is
// none.
func Session(r *http.Request) string {
	if c, err := r.Cookie(cookieName(r)); err == nil {
		return c.Value
	}
	return ""
}

func cookieName(r *http.Request) string {
	if r.TLS != nil {
		return SecurePrefix + CookieName
	}
	return CookieName
}

// OnThisHost is the viewer of a request from this host to a name of this host. A web page can make
// a browser call a server here under a name of its own (DNS rebinding), and Host is that name.
// It returns nil for every other request, and for those that a proxy has Forwarded.
func OnThisHost(r *http.Request) *Viewer {
	if Forwarded(r) {
		return nil
	}
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && addr.Network() == "unix" || isLoopback(r.RemoteAddr) && isLoopback(r.Host) {
		return &Viewer{Name: "local", Act: true}
	}
	return nil
}

// isLoopback reports whether a host, with a port or without, is this host.
func isLoopback(hostport string) bool {
	host := hostport
	if name, _, err := net.SplitHostPort(hostport); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// Forwarded reports whether a request says that a proxy passed it on: its client may be anywhere. A
// proxy on this host that adds none of these fields cannot be told from a client here.
func Forwarded(r *http.Request) bool {
	for name := range r.Header {
		switch name = strings.ToLower(strings.ReplaceAll(name, "_", "-")); {
		case name == "forwarded", name == "via", name == "x-real-ip", strings.HasPrefix(name, "x-forwarded"):
			return true
		}
	}
	return false
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

// signIn sets the cookie for a token.
func (h *Handler) signIn(w http.ResponseWriter, r *http.Request) {
	var form struct{ Token string }
	if !read(w, r, maxSignIn, &form) {
		return
	}
	session := ""
	if h.options.SignIn != nil {
		session = h.options.SignIn(strings.TrimSpace(form.Token))
	}
	if session == "" {
		fail(w, http.StatusUnauthorized, "The token is unknown, or it may not look.")
		return
	}
	http.SetCookie(w, cookie(r, session, 0))
	w.WriteHeader(http.StatusNoContent)
}

// signOut deletes the cookie.
func (h *Handler) signOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, cookie(r, "", -1))
	w.WriteHeader(http.StatusNoContent)
}

// cookie returns a cookie that ends with the browser, and that no script and no other site can use.
func cookie(r *http.Request, session string, age int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName(r), Value: session, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	}
}
