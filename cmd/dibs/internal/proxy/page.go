package proxy

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// checkPage refuses what is not an element of CORS: a page's origin as browsers send it (RFC 6454,
// section 6.2).
func checkPage(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || !isHostname(u.Hostname()) || u.Port() != "" && !isPort(u.Port()) || slices.Contains([]string{"ws", "wss"}, u.Scheme) {
		return fmt.Errorf("%q is not a page's origin as browsers send it, such as https://shop.example", s)
	}
	sent := u.Scheme + "://" + strings.ToLower(u.Host)
	if ports := map[string]string{"http": ":80", "https": ":443"}; ports[u.Scheme] != "" {
		sent = strings.TrimSuffix(sent, ports[u.Scheme])
	}
	if sent != s {
		return fmt.Errorf("%q is not what browsers send; write %s", s, sent)
	}
	return nil
}
