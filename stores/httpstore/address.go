package httpstore

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Schemes are the schemes of a store's URL.
func Schemes() []string { return []string{"https", "http", "http+unix"} }

// ErrURL says that a text is not the URL of a store over dibs serve.
var ErrURL = errors.New("httpstore: not the URL of a store")

// Address is the URL of a store.
type Address struct {
	servers []string // URLs without a path
	secret  string
	socket  string // the path of a Unix socket, or ""
}

// Parse reads the URL of a store.
//
//	https://:TOKEN@dibs.internal
//	https://:TOKEN@a.internal,b.internal:8443   several servers of one store
//	http://127.0.0.1:7331
//	http+unix:/run/dibs/dibs.sock
//
// TOKEN is a credential of the server's file of tokens. The error is an ErrURL. It says what
// is wrong, and does not have the token.
func Parse(address string) (*Address, error) {
	a, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	return a, nil
}

func parse(address string) (*Address, error) {
	if path, ok := strings.CutPrefix(address, "http+unix:"); ok {
		path, ok = strings.CutPrefix(path, "//")
		if !ok && strings.HasPrefix(path, "//") || !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#") {
			return nil, errors.New("the URL of a socket is http+unix: and an absolute path, such as http+unix:/run/dibs/dibs.sock")
		}
		return &Address{servers: []string{"http://localhost"}, socket: path}, nil
	}
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok || scheme != "http" && scheme != "https" {
		return nil, errors.New("it must begin with https://, http:// or http+unix:")
	}
	a := &Address{}
	hosts := rest
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		user := rest[:i]
		hosts = rest[i+1:]
		secret, ok := strings.CutPrefix(user, ":")
		if !ok || secret == "" {
			return nil, errors.New("the token stands in the password's place and there is no user, as in https://:TOKEN@HOST")
		}
		var err error
		if a.secret, err = url.PathUnescape(secret); err != nil {
			return nil, errors.New("the token has a % that is not an escape")
		}
	}
	if hosts = strings.TrimSuffix(hosts, "/"); strings.ContainsAny(hosts, "/?#") {
		return nil, errors.New("there is a path or a parameter after the host; the URL has neither")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		u, err := url.Parse(scheme + "://" + host)
		if err != nil || u.Hostname() == "" || u.Host != host {
			return nil, fmt.Errorf("%q is not a host", host)
		}
		a.servers = append(a.servers, scheme+"://"+host)
	}
	return a, nil
}

// String returns the URL without the token.
func (a *Address) String() string {
	if a.socket != "" {
		return "http+unix:" + a.socket
	}
	var text strings.Builder
	text.WriteString(a.servers[0])
	for _, s := range a.servers[1:] {
		_, host, _ := strings.Cut(s, "://")
		text.WriteString("," + host)
	}
	return text.String()
}

// HasToken reports whether the URL has a token.
func (a *Address) HasToken() bool { return a.secret != "" }
