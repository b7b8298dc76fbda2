package fault

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/dibs-go/dibs/internal/prove/wire"
)

// Through opens n wires to the server of the store's URL, and returns with each the URL that
// leads through it. Its error says why no wire can be put before that store. The caller closes
// the wires.
func Through(storeURL string, n int) (wires []*wire.Wire, urls []string, err error) {
	addr, err := address(storeURL)
	if err != nil {
		return nil, nil, fmt.Errorf("fault: %w", err)
	}
	for range n {
		w, err := wire.Open(addr)
		if err != nil {
			for _, w := range wires {
				_ = w.Close() // what has gone wrong is said already
			}
			return nil, nil, err
		}
		wires, urls = append(wires, w), append(urls, at(storeURL, w.Addr()))
	}
	return wires, urls, nil
}

// ports are the default ports. No other scheme can have a wire.
var ports = map[string]string{
	"redis": "6379", "postgres": "5432", "postgresql": "5432", "mysql": "3306", "mariadb": "3306", "http": "80", "etcd": "2379",
}

// address returns the address of the one server that the URL leads to over TCP.
func address(storeURL string) (string, error) {
	no := func(why string) (string, error) {
		return "", errors.New("no wire can be put before the store: " + why)
	}
	scheme, rest, ok := strings.Cut(storeURL, "://")
	port := ports[scheme]
	switch {
	case strings.HasPrefix(scheme, "rediss"):
		return no("it is reached by TLS, which would notice; use a redis:// URL of the same server")
	case scheme == "https":
		return no("it is reached by TLS, which would notice; use an http:// URL of the same server")
	case strings.HasPrefix(storeURL, "http+unix:"):
		return no("it is reached by a socket; use an http:// URL of the same server")
	case strings.HasPrefix(scheme, "redis+"):
		return no("its clients find their servers by themselves, or by a socket; use the redis:// URL of one server")
	case !ok || port == "":
		return no("it has no server")
	}
	_, host, after := around(storeURL)
	if strings.Contains(host, ",") {
		return no("it has several servers; name one")
	}
	_, query, _ := strings.Cut(after, "?")
	asked, err := url.ParseQuery(query)
	if err != nil {
		return no("what is behind the ? in its URL cannot be read")
	}
	switch {
	case host == "" || asked.Has("host") || asked.Has("socket") || strings.HasPrefix(rest, "/"):
		return no("its URL names no host, or a socket; name the server's host and port")
	case strings.HasPrefix(asked.Get("sslmode"), "verify"), asked.Get("tls") == "true", asked.Has("tls-ca"):
		return no("it is reached by TLS, and the server's name is looked at; use sslmode=require, or tls=skip-verify")
	}
	if name, number, err := net.SplitHostPort(host); err == nil && number != "" {
		return net.JoinHostPort(name, number), nil
	}
	return net.JoinHostPort(strings.Trim(strings.TrimSuffix(host, ":"), "[]"), port), nil
}

// at returns the URL with another host and port.
func at(storeURL, addr string) string {
	before, _, after := around(storeURL)
	return before + addr + after
}

// around cuts a URL around its host and port. It does not use net/url, because a store's password
// may contain characters that a URL's may not.
func around(storeURL string) (before, host, after string) {
	scheme, rest, _ := strings.Cut(storeURL, "://")
	user, ends := len(rest), "/?" // where the user ends at the latest
	if scheme == "redis" {
		ends = "?"
	}
	if i := strings.IndexAny(rest, ends); i >= 0 {
		user = i
	}
	begin := strings.LastIndex(rest[:user], "@") + 1
	end := len(rest)
	if i := strings.IndexAny(rest[begin:], "/?"); i >= 0 {
		end = begin + i
	}
	return scheme + "://" + rest[:begin], rest[begin:end], rest[end:]
}
