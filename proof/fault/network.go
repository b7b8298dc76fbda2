package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/prove/wire"
)

func networkFaults() []*Fault {
	return []*Fault{
		{
			Name: "delay", Kind: Network, applies: needWires,
			About: "what workers send and are sent takes longer, each piece by another time", Evidence: "a piece that arrived late",
			strike: trouble(func(t *Target, r *rand.Rand) wire.Trouble {
				most := max(time.Millisecond, t.lease()/4)
				return wire.Trouble{Delay: time.Duration(r.Int64N(int64(most))), Jitter: most}
			}, func(c wire.Counts) int { return c.Late }),
		},
		{
			Name: "cut", Kind: Network, applies: needWires, strike: cut,
			About: "connections are reset, and new ones refused for a while", Evidence: "a connection that was reset under a call, or refused",
		},
		{
			Name: "partition", Kind: Network, applies: needWires,
			About: "nothing gets through, either way, and arrives when the partition ends", Evidence: "a piece that arrived after the partition",
			strike: trouble(func(*Target, *rand.Rand) wire.Trouble {
				return wire.Trouble{Hold: true}
			}, func(c wire.Counts) int { return c.Held }),
		},
		{
			Name: "lost-requests", Kind: Network, applies: needWires,
			About: "what is sent to the server is lost without a word; the connections are reset at the end", Evidence: "a request that was dropped",
			strike: trouble(func(*Target, *rand.Rand) wire.Trouble {
				return wire.Trouble{Lose: [2]bool{wire.Requests: true}}
			}, func(c wire.Counts) int { return c.LostRequests }),
		},
		{
			Name: "lost-replies", Kind: Network, applies: needWires,
			About: "the server does what it is asked, and its replies are lost; the connections are reset at the end", Evidence: "a reply that came and was dropped",
			strike: trouble(func(*Target, *rand.Rand) wire.Trouble {
				return wire.Trouble{Lose: [2]bool{wire.Replies: true}}
			}, func(c wire.Counts) int { return c.LostReplies }),
		},
		{
			Name: "lost-reply", Kind: Network, applies: needWires,
			About: "a few replies are lost and their connections reset at once, so that the client can ask again before its lease ends", Evidence: "a reply that came and was dropped",
			strike: trouble(func(_ *Target, r *rand.Rand) wire.Trouble {
				return wire.Trouble{LoseReply: 1 + r.IntN(8)}
			}, func(c wire.Counts) int { return c.LostReplies }),
		},
	}
}

func needWires(t *Target) error {
	if len(t.Wires) == 0 {
		if _, err := address(t.URL); err != nil {
			return err
		}
		return errors.New("the workers do not use wires")
	}
	return nil
}

// trouble returns a strike that makes a trouble for a spell on some of the wires.
func trouble(of func(*Target, *rand.Rand) wire.Trouble, hits func(wire.Counts) int) func(context.Context, *Target, *rand.Rand) (int, error) {
	return func(ctx context.Context, t *Target, r *rand.Rand) (int, error) {
		some, release := t.wires(r)
		defer release()
		before := total(some, hits)
		trouble := of(t, r)
		for _, w := range some {
			w.Set(trouble, r)
		}
		_ = backoff.Sleep(ctx, t.spell(r))
		for _, w := range some {
			w.Set(wire.Trouble{}, nil)
		}
		// What was kept back is on its way now.
		settled := total(some, hits)
		await(evidence/10, func() bool {
			last := settled
			settled = total(some, hits)
			return settled > before && settled == last
		})
		return settled - before, nil
	}
}

// cut resets the connections of some wires, and refuses new ones for a while.
func cut(ctx context.Context, t *Target, r *rand.Rand) (int, error) {
	count := func(c wire.Counts) int { return c.Closed + c.Refused }
	some, release := t.wires(r)
	defer release()
	before := total(some, count)
	// Between two calls a reset does no harm: wait until a call is under way.
	await(t.lease()/2, func() bool {
		return ctx.Err() != nil || slices.ContainsFunc(some, (*wire.Wire).Busy)
	})
	for _, w := range some {
		w.Set(wire.Trouble{Refuse: true}, r)
		w.Reset()
	}
	_ = backoff.Sleep(ctx, t.spell(r))
	for _, w := range some {
		w.Set(wire.Trouble{}, nil)
	}
	return total(some, count) - before, nil
}

func total(wires []*wire.Wire, count func(wire.Counts) int) (n int) {
	for _, w := range wires {
		n += count(w.Counts())
	}
	return n
}

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
	"redis": "6379", "postgres": "5432", "postgresql": "5432", "mysql": "3306", "mariadb": "3306", "http": "80", "etcd": "2379", "s3": "80",
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
	if scheme == "s3" { // the host is a bucket
		before, rest, _ := strings.Cut(storeURL, "endpoint=http://")
		end := len(rest)
		if i := strings.IndexAny(rest, "/&"); i >= 0 {
			end = i
		}
		return before + "endpoint=http://", rest[:end], rest[end:]
	}
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
