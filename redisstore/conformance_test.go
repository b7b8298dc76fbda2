package redisstore

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB) *storetest.Backend {
			server := servertest.Redis(t, &servertest.RedisOptions{Persistence: servertest.AOF})
			return &storetest.Backend{
				Open: func() dibs.Store {
					client, err := rueidis.NewClient(rueidis.ClientOption{
						InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true,
					})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(client.Close)
					s, err := New(client, nil)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { s.Close() })
					return s
				},
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { server.Do("FLUSHALL") },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew:   "it reads no clock of its process",
			storetest.Pruner: "the server forgets by itself what has ended",
		},
	})
}
