package proxy

import (
	"net/http"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/page"
)

// pageCookies are the names of the cookie of the page for operators. A browser sends a cookie to every
// port of a host, so the page's comes with requests for the origin, too.
var pageCookies = []string{page.CookieName, page.SecurePrefix + page.CookieName}

// dropPageCookie removes the page's cookie, and leaves the others as they are.
func dropPageCookie(h http.Header) {
	ours := func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(pageCookies, strings.TrimSpace(name))
	}
	lines := h["Cookie"]
	if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, page.CookieName) }) {
		return
	}
	kept := make([]string, 0, len(lines))
	for _, line := range lines {
		pairs := strings.Split(line, ";")
		if rest := slices.DeleteFunc(pairs, ours); len(rest) > 0 {
			kept = append(kept, strings.TrimSpace(strings.Join(rest, ";")))
		}
	}
	h["Cookie"] = kept
	if len(kept) == 0 {
		delete(h, "Cookie")
	}
}
