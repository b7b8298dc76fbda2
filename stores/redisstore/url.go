package redisstore

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrURL: the text is not a URL of a Redis. The error says what is wrong and how to write
// it, and never contains a password.
var ErrURL = errors.New("redisstore: not the URL of a Redis")

type kind int

const (
	single kind = iota
	socket
	sentinels
	cluster
)

// scheme is the beginning of a URL.
type scheme struct {
	name string
	kind kind
	tls  bool
	form string // the form of the whole URL
}

var schemes = []scheme{
	{"redis", single, false, "redis://[USER:PASSWORD@]HOST[:PORT][/DB]"},
	{"rediss", single, true, "rediss://[USER:PASSWORD@]HOST[:PORT][/DB]"},
	{"redis+unix", socket, false, "redis+unix://[USER:PASSWORD@]/PATH"},
	{"redis+sentinel", sentinels, false, "redis+sentinel://[USER:PASSWORD@]HOST[:PORT],…/MASTER[/DB]"},
	{"rediss+sentinel", sentinels, true, "rediss+sentinel://[USER:PASSWORD@]HOST[:PORT],…/MASTER[/DB]"},
	{"redis+cluster", cluster, false, "redis+cluster://[USER:PASSWORD@]HOST[:PORT],…"},
	{"rediss+cluster", cluster, true, "rediss+cluster://[USER:PASSWORD@]HOST[:PORT],…"},
}

// Address is a parsed URL; see Parse.
type Address struct {
	scheme string
	kind   kind
	tls    bool
	hosts  []string // HOST:PORT of each, or a socket's path
	path   string   // printed after the hosts
	master string   // the sentinels' name of the master
	db     int

	user, password                 string
	sentinelUser, sentinelPassword string

	ca, cert, key, serverName string
	skipVerify                bool

	prefix      string
	replicas    int
	replicaWait time.Duration

	shown url.Values // parameters that may be printed
}

// Parse reads a URL, one of
//
//	redis://[USER:PASSWORD@]HOST[:PORT][/DB]
//	redis+sentinel://[USER:PASSWORD@]HOST[:PORT],…/MASTER[/DB]
//	redis+cluster://[USER:PASSWORD@]HOST[:PORT],…
//	redis+unix://[USER:PASSWORD@]/PATH
//
// With rediss instead of redis, the first three use TLS. The default port is 6379, for
// sentinels 26379. Percent-encode '?', '%' and ':' in user and password. Parameters
// follow a '?', joined by '&':
//
//	prefix=TEXT                  Options.Prefix
//	replicas=N, replica-wait=D   Options.Replicas, Options.ReplicaWait
//	ca=FILE                      TLS: certificate authority, PEM; default: the system's
//	cert=FILE, key=FILE          TLS: client certificate, PEM
//	server-name=NAME             TLS: the name in the server's certificate
//	skip-verify=true             TLS: do not verify the server, for tests
//	sentinel-user=NAME, sentinel-password=TEXT
//	db=N                         the database, with a Unix socket
//
// It connects to no server and reads no file. The error is an ErrURL.
func Parse(rawURL string) (*Address, error) {
	a, err := parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	return a, nil
}

// parse does not use url.Parse, which refuses several hosts unless only the last one has a port, and
// a '/' in a password.
func parse(rawURL string) (*Address, error) {
	name, rest, ok := strings.Cut(rawURL, "://")
	at := slices.IndexFunc(schemes, func(s scheme) bool { return s.name == name })
	if !ok || at < 0 {
		return nil, fmt.Errorf("it must begin with %s", strings.Join(Schemes(), "://, ")+"://")
	}
	s := schemes[at]
	a := &Address{scheme: s.name, kind: s.kind, tls: s.tls, shown: url.Values{}}
	rest, query, _ := strings.Cut(rest, "?")
	if strings.Contains(query, "@") {
		return nil, errors.New("write '?' in a password as %3F, and '@' after a '?' as %40")
	}
	// The last '@', because a password may contain one.
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		if err := a.setUser(rest[:i]); err != nil {
			return nil, fmt.Errorf("%w: %s", err, s.form)
		}
		rest = rest[i+1:]
	}
	hosts, path, slash := strings.Cut(rest, "/")
	if slash {
		a.path = "/" + path
	}
	if err := a.setHosts(hosts); err != nil {
		return nil, fmt.Errorf("%w: %s", err, s.form)
	}
	if err := a.setPath(path); err != nil {
		return nil, fmt.Errorf("%w: %s", err, s.form)
	}
	if err := a.setParameters(query); err != nil {
		return nil, err
	}
	return a, nil
}

// Schemes returns the schemes that Parse knows: "redis", "rediss", …
func Schemes() []string {
	names := make([]string, len(schemes))
	for i, s := range schemes {
		names[i] = s.name
	}
	return names
}

// String returns the URL without user, passwords and other secrets.
func (a *Address) String() string {
	s := a.scheme + "://"
	if a.kind != socket {
		s += strings.Join(a.hosts, ",")
	}
	s += a.path
	if len(a.shown) > 0 {
		s += "?" + a.shown.Encode()
	}
	return s
}

func (a *Address) setUser(s string) error {
	user, password, ok := strings.Cut(s, ":")
	if !ok {
		// Some programs read it as a password, others as a user.
		return errors.New("the part before '@' must be USER:PASSWORD or :PASSWORD")
	}
	var err1, err2 error
	a.user, err1 = url.PathUnescape(user)
	a.password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return errors.New("write '%' in a user or password as %25")
	}
	return nil
}

// setHosts reads the hosts. Its errors contain no input, because a mistyped URL may have
// a password there.
func (a *Address) setHosts(s string) error {
	switch {
	case a.kind == socket && s != "":
		return errors.New("a socket has a path and no host")
	case a.kind == socket:
		return nil
	case s == "":
		return errors.New("the host is missing")
	}
	for host := range strings.SplitSeq(s, ",") {
		addr, err := a.hostPort(host)
		if err != nil {
			return err
		}
		if slices.Contains(a.hosts, addr) {
			return errors.New("a host appears twice")
		}
		a.hosts = append(a.hosts, addr)
	}
	if a.kind == single && len(a.hosts) > 1 {
		return errors.New("only a Cluster or sentinels have several hosts")
	}
	return nil
}

func (a *Address) hostPort(s string) (string, error) {
	port := "6379"
	if a.kind == sentinels {
		port = "26379"
	}
	host := s
	switch {
	case strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]"):
		host = s[1 : len(s)-1]
	case strings.Contains(s, ":"):
		var err error
		if host, port, err = net.SplitHostPort(s); err != nil {
			return "", errors.New("a host must be NAME, NAME:PORT or, with an IPv6 address, [ADDRESS]:PORT")
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("a port must be a number from 1 to 65535")
	}
	if _, err := netip.ParseAddr(host); err != nil && !hostNames.MatchString(host) {
		return "", errors.New("a host must be a name or an address")
	}
	return net.JoinHostPort(host, port), nil
}

var hostNames = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// setPath reads the part after the hosts.
func (a *Address) setPath(s string) (err error) {
	switch a.kind {
	case socket:
		path, err := url.PathUnescape(a.path)
		if err != nil || s == "" {
			return errors.New("the path of the socket is missing, or has a '%' that is not written as %25")
		}
		a.hosts = []string{path}
		return nil
	case cluster:
		if s != "" && s != "0" {
			return errors.New("a Cluster has only database 0")
		}
		return nil
	case sentinels:
		master, db, _ := strings.Cut(s, "/")
		if a.master, err = url.PathUnescape(master); err != nil || master == "" {
			return errors.New("the sentinels' name of the master is missing")
		}
		s = db
	}
	if s == "" {
		return nil
	}
	if a.db, err = number(s); err != nil {
		return errors.New("the database must be a number")
	}
	return nil
}
