package stores

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/redisstore"
)

// redisForms are how the URLs of Redis look, for help texts. What they leave out
// is in the errors and in the README of redisstore.
var redisForms = map[string]string{
	"redis":          "redis://HOST[:PORT][/DB]",
	"redis+sentinel": "redis+sentinel://HOST[:PORT],…/MASTER",
	"redis+cluster":  "redis+cluster://HOST[:PORT],…",
	"redis+unix":     "redis+unix:///PATH",
	"rediss":         "rediss…:// for TLS",
}

func redisBackends() []backend {
	var all []backend
	for _, scheme := range redisstore.Schemes() {
		all = append(all, backend{
			scheme: scheme, form: redisForms[scheme], lasting: true,
			check: func(rest string) error {
				_, err := redisstore.Parse(scheme + ":" + rest)
				if errors.Is(err, redisstore.ErrURL) {
					return errors.New(strings.TrimPrefix(err.Error(), redisstore.ErrURL.Error()+": "))
				}
				return err
			},
			show: func(rest string) (string, bool) {
				a, err := redisstore.Parse(scheme + ":" + rest)
				if err != nil {
					return "", true // it was checked
				}
				return strings.TrimPrefix(a.String(), scheme+":"), strings.Contains(rest, "@") || strings.Contains(rest, "password=")
			},
			open: func(ctx context.Context, rest string, s *Store) error {
				r, err := redisstore.Open(ctx, scheme+":"+rest, nil)
				if err != nil {
					return fmt.Errorf("%s: %w", s, err)
				}
				s.Store, s.close = r, r.Close
				s.version = func(ctx context.Context) (string, error) { return redisVersion(ctx, r) }
				return nil
			},
		})
	}
	return all
}

// redisVersion asks the server, or one of a Cluster's, what it is.
func redisVersion(ctx context.Context, s *redisstore.Store) (string, error) {
	client := s.Client()
	info, err := client.Do(ctx, client.B().Info().Section("server").Build()).ToString()
	if err != nil {
		return "", err
	}
	version := "Redis"
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "valkey_version":
			return "Valkey " + value, nil
		case "redis_version":
			version = "Redis " + value
		}
	}
	return version, nil
}
