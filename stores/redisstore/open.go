package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

const (
	// openLimit bounds Open.
	openLimit = 8 * time.Second
	// callLimit is the longest wait for an answer; then the connection is closed.
	// stallLimit replaces it where another server can take over, because calls move to
	// the successor only then. A silent connection is probed every pingGap.
	callLimit  = 4 * time.Second
	stallLimit = 2 * time.Second
	pingGap    = 500 * time.Millisecond
	// topologyGap is how often sentinels and clusters are asked for their topology.
	topologyGap = 2 * time.Second
)

// The oldest supported servers.
var (
	oldest        = version{6, 2}
	oldestCluster = version{7, 0} // the first with sharded publish
)

// Open connects to the Redis that the URL names (see Parse) and returns a Store on it.
// Options may be nil; the URL's parameters are added to them. It sends a few commands,
// and takes at most 8 s.
//
// It returns ErrURL, ErrUnreachable when no server answers, ErrUnsupported when the
// server is not a Redis of the right kind and version, or a product on which leases are not
// exclusive (docs/reference/databases.md), ErrUnauthorized when it refuses
// the user or the user lacks a right that claims, waiters or listings need, ErrReadOnly when it is a replica, or another error of calls. Each says what
// to do.
func Open(ctx context.Context, rawURL string, o *Options) (*Store, error) {
	a, err := Parse(rawURL)
	if err != nil {
		return nil, err
	}
	if o, err = a.amend(o); err != nil {
		return nil, err
	}
	settings, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	security, err := a.security()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(settings.patience, openLimit))
	defer cancel()
	// WAIT takes up to ReplicaWait.
	replicaWait := time.Duration(min(settings.Replicas, 1)) * settings.ReplicaWait
	network, stall := "tcp", cmp.Or(settings.patience, callLimit)
	switch a.kind {
	case socket:
		network = "unix"
	case sentinels, cluster:
		stall = stallLimit
	}
	d := newDialer(network, stall)
	option := a.clientOption()
	if settings.patience != 0 && option.ForceSingleClient {
		d.limit, option.Dialer.Timeout = stall, stall
	}
	option.ConnWriteTimeout = stall + replicaWait
	option.DialCtxFn = d.dial
	option.TLSConfig, option.Sentinel.TLSConfig = security, security
	client, err := connect(ctx, option, d)
	if err != nil {
		return nil, a.explain(err)
	}
	s, err := New(client, o)
	if err != nil {
		d.end()
		client.Close()
		return nil, err
	}
	s.own = d
	if err := s.verify(ctx, a); err != nil {
		s.Close()
		return nil, a.explain(err)
	}
	return s, nil
}

func (a *Address) clientOption() rueidis.ClientOption {
	reach := net.Dialer{Timeout: dialLimit, KeepAlive: pingGap}
	o := rueidis.ClientOption{
		InitAddress:       a.hosts,
		Username:          a.user,
		Password:          a.password,
		SelectDB:          a.db,
		ClientName:        "dibs",
		Dialer:            reach,
		DisableCache:      true,
		ForceSingleClient: a.kind == single || a.kind == socket,
	}
	switch a.kind {
	case sentinels:
		o.Sentinel = rueidis.SentinelOption{
			Dialer:                  reach,
			MasterSet:               a.master,
			Username:                a.sentinelUser,
			Password:                a.sentinelPassword,
			ClientName:              "dibs",
			TopologyRefreshInterval: topologyGap,
		}
	case cluster:
		o.ClusterOption = rueidis.ClusterOption{ShardsRefreshInterval: topologyGap, MaxMovedRedirections: 16}
	}
	return o
}

// connect makes a client. NewClient takes no context, so the dialer's connections are
// closed when the context ends.
func connect(ctx context.Context, option rueidis.ClientOption, d *dialer) (rueidis.Client, error) {
	stop := context.AfterFunc(ctx, d.leave)
	client, err := rueidis.NewClient(option)
	if stop() && err == nil {
		return client, nil
	}
	d.end()
	if client != nil {
		client.Close()
	}
	if ctx.Err() != nil {
		err = ended(ctx)
	}
	return nil, err
}

// ended is the error of a context that ended.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return fmt.Errorf("%w: no answer in time", ErrUnreachable)
}

// verify checks that the store can use the server, with a first claim.
func (s *Store) verify(ctx context.Context, a *Address) error {
	hello, err := s.client.Do(ctx, s.client.B().Arbitrary("HELLO").Build()).AsMap()
	if err != nil {
		return err
	}
	// The user may lack the right to ask. Then the server is what it seems to be.
	if info, err := s.client.Do(ctx, s.client.B().Info().Build()).ToString(); err == nil {
		if p := product.Redis.Meet(fields(info)).Refusing(product.OfStore); p != nil {
			return &storekit.Fault{Is: ErrUnsupported, Text: p.Refusal(), Cure: p.Remedy()}
		}
	}
	field := func(name string) string {
		m := hello[name]
		text, _ := m.ToString()
		return text
	}
	if err := a.checkServer(field("mode"), field("version")); err != nil {
		return err
	}
	if role := field("role"); a.kind != cluster && role != "" && role != "master" {
		return &storekit.Fault{Is: ErrReadOnly, Text: "it is a " + role, Cure: "connect to the master, or through Sentinel: redis+sentinel://HOST:PORT/MASTER"}
	}
	if s.options.ReadOnly {
		for _, err := range s.List(ctx, store.Query{Namespace: new(string), Name: "dibs", Data: true, Places: true}) {
			return err
		}
		return nil
	}
	if err := s.checkRights(ctx); err != nil {
		return err
	}
	return storekit.Probe(ctx, s)
}

// checkServer returns an error if the server's mode or version does not fit the address.
func (a *Address) checkServer(mode, v string) error {
	wrong := func(message, cure string) error {
		return &storekit.Fault{Is: ErrUnsupported, Text: message, Cure: cure}
	}
	switch {
	case mode == "cluster" && a.kind != cluster:
		return wrong("it is a node of a Redis Cluster", "write redis+cluster://HOST:PORT,HOST:PORT")
	case mode == "sentinel":
		return wrong("it is a sentinel", "write redis+sentinel://HOST:PORT/MASTER")
	case mode != "cluster" && a.kind == cluster:
		return wrong("it is not a node of a Redis Cluster", "write redis://HOST:PORT")
	}
	least := oldest
	if a.kind == cluster {
		least = oldestCluster
	}
	if got, ok := parseVersion(v); ok && got.less(least) {
		return wrong("its version is "+v, "use "+least.String()+" or newer")
	}
	return nil
}

// explain gives an error of Open its meaning.
func (a *Address) explain(err error) error {
	message := err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: no answer in time", ErrUnreachable)
	case strings.Contains(message, "unknown command") && strings.Contains(strings.ToUpper(message), "HELLO"):
		return &storekit.Fault{Is: ErrUnsupported, Text: message, Cure: "use Redis " + oldest.String() + " or newer"}
	case a.kind == sentinels && strings.Contains(strings.ToUpper(message), "UNKNOWN COMMAND") && strings.Contains(strings.ToUpper(message), "SENTINEL"):
		return &storekit.Fault{Is: ErrUnsupported, Text: message, Cure: "it is not a sentinel: write redis://HOST:PORT"}
	case a.kind == sentinels && (rueidis.IsRedisNil(err) || strings.Contains(message, "No such master")):
		return &storekit.Fault{Is: ErrUnsupported, Text: fmt.Sprintf("the sentinels know no master %q", a.master), Cure: "write redis+sentinel://HOST:PORT/MASTER"}
	case a.kind == cluster && strings.Contains(message, "cluster support disabled"):
		return &storekit.Fault{Is: ErrUnsupported, Text: "it is not a node of a Redis Cluster", Cure: "write redis://HOST:PORT"}
	case strings.Contains(message, "SELECT is not allowed in cluster mode"):
		return &storekit.Fault{Is: ErrUnsupported, Text: "it is a node of a Redis Cluster", Cure: "write redis+cluster://HOST:PORT,HOST:PORT"}
	}
	if _, ok := rueidis.IsRedisErr(err); ok {
		err = explain("", err)
	}
	if a.kind == sentinels && errors.Is(err, ErrUnauthorized) {
		return fmt.Errorf("%w; credentials for the sentinels are ?sentinel-user= and sentinel-password=", err)
	}
	if errors.Is(err, rueidis.ErrClosing) {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

// version is a server's version, without the patch level.
type version struct{ major, minor int }

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

func (v version) less(w version) bool {
	return v.major < w.major || v.major == w.major && v.minor < w.minor
}

func parseVersion(s string) (v version, ok bool) {
	_, err := fmt.Sscanf(s, "%d.%d", &v.major, &v.minor)
	return v, err == nil
}
