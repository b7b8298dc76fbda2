package anystore

import (
	"context"
	"strings"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// redisKind leaves out some URLs of Redis in its form. The errors and the README of redisstore
// have them.
var redisKind = kind{
	schemes: redisstore.Schemes(),
	form:    "redis://HOST[:PORT][/DB] (also redis+sentinel://HOST,…/MASTER, redis+cluster://HOST,…, redis+unix:///PATH; rediss for TLS)",
	parse: func(url string) (address, error) {
		a, err := redisstore.Parse(url)
		if err != nil {
			return nil, without(err, redisstore.ErrURL)
		}
		return redisAddress{Address: a, url: url}, nil
	},
}

// redisAddress is the URL of a store in Redis or Valkey.
type redisAddress struct {
	*redisstore.Address
	url   string
	given *redisstore.Options // beside the URL's
}

func (a redisAddress) toRead() address {
	a.given = &redisstore.Options{ReadOnly: true}
	return a
}

func (a redisAddress) secret() bool {
	return strings.Contains(a.url, "@") || strings.Contains(a.url, "password=")
}

func (redisAddress) find() error { return nil }

func (a redisAddress) check(context.Context) ([]store.Finding, error) { return a.checkTLS(), nil }

func (a redisAddress) checkTLS() []store.Finding {
	scheme, rest, _ := strings.Cut(a.String(), "://")
	if strings.HasPrefix(scheme, "rediss") || scheme == "redis+unix" {
		return nil
	}
	hosts, _, _ := strings.Cut(strings.ReplaceAll(rest, "?", "/"), "/")
	return unencrypted("Write rediss instead of redis in the URL.", strings.Split(hosts, ",")...)
}

func (a redisAddress) open(ctx context.Context) (*Store, error) {
	r, err := redisstore.Open(ctx, a.url, a.given)
	if err != nil {
		return nil, err
	}
	version := func(ctx context.Context) (string, error) { return redisVersion(ctx, r) }
	return &Store{Store: r, address: a, close: r.Close, version: version, reads: a.given != nil}, nil
}

// redisVersion asks the server, or one server of a Cluster, for its product and version.
func redisVersion(ctx context.Context, s *redisstore.Store) (string, error) {
	client := s.Client()
	said := map[string]string{}
	if info, err := client.Do(ctx, client.B().Info().Build()).ToString(); err == nil {
		for line := range strings.Lines(info) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			said[name] = value
		}
	} else { // the user may lack the right
		hello, err := client.Do(ctx, client.B().Arbitrary("HELLO").Build()).AsMap()
		if err != nil {
			return "", err
		}
		server, version := hello["server"], hello["version"]
		name, _ := server.ToString()
		if said[name+"_version"], err = version.ToString(); err != nil {
			return "", err
		}
	}
	name, version := "an unknown server", said["redis_version"]
	// The table has the special products after the general ones.
	for _, p := range product.Redis.Meet(said).Products {
		name = p.Name
		for _, sign := range p.Signs {
			if strings.HasSuffix(sign.Asked, "_version") {
				version = said[sign.Asked]
			}
		}
	}
	return strings.TrimSpace(name + " " + version), nil
}
