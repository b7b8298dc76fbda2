package redisstore

import (
	"path"
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits
	conform(t, standalone(sharedRedis, servertest.RedisOptions{Persistence: servertest.AOF}))
}

// conform checks all properties on backends of one kind.
func conform(t *testing.T, subject func(testing.TB, time.Duration) *storetest.Subject) {
	storetest.Run(t, &storetest.Harness{
		New: subject,
		Lacks: map[storetest.Feature]string{
			storetest.Skew:   "it reads no clock of its process; see TestNoClock",
			storetest.Pruner: "the server forgets by itself what has ended",
		},
	})
}

// standalone returns backends on the server that all share. Those that restart theirs
// have servers of their own.
func standalone(shared func() *servertest.RedisServer, own servertest.RedisOptions) func(testing.TB, time.Duration) *storetest.Subject {
	return func(t testing.TB, turn time.Duration) *storetest.Subject {
		server := shared()
		if restarts(t) {
			server = servertest.Redis(t, &own)
		}
		o := &Options{Prefix: testkit.Own(), pushedTTL: turn}
		wiped := func() { wipe(t, server, o.Prefix) }
		t.Cleanup(wiped) // what is left slows others' lists
		return &storetest.Subject{
			Open:    func() store.Store { return open(t, server.URL(), o) },
			Restart: func() { server.Kill(); server.Restart() },
			Wipe:    wiped,
		}
	}
}

// restarts reports whether the property that is checked restarts its backend.
func restarts(t testing.TB) bool {
	return slices.ContainsFunc(storetest.Properties(), func(p storetest.Property) bool {
		return p.Name == path.Base(t.Name()) && slices.Contains(p.Needs, storetest.Restart)
	})
}

// wipe has a server lose all that is under a prefix.
func wipe(t testing.TB, server *servertest.RedisServer, prefix string) {
	conn, err := server.Dial()
	if err != nil {
		t.Errorf("wiping: %v", err)
		return
	}
	defer conn.Close()
	for _, name := range names(server, prefix) {
		if _, err := conn.Do("DEL", name); err != nil {
			t.Errorf("wiping: %v", err)
			return
		}
	}
}
