package asynqjobs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// scope owns the servers that the tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	testkit.Main(m, testkit.Children{"work": beChild}, scope.Close)
}

var sharedRedis = sync.OnceValue(func() *servertest.RedisServer {
	return servertest.Redis(scope, &servertest.RedisOptions{Databases: 200})
})

var used atomic.Int64

// ownRedis returns a database that no other test of this run has.
func ownRedis(t testing.TB) asynq.RedisClientOpt {
	t.Helper()
	return asynq.RedisClientOpt{Addr: sharedRedis().Addr(), DB: int(used.Add(1))}
}

// storeURL is that of a store in the same database.
func storeURL(r asynq.RedisClientOpt) string { return fmt.Sprintf("redis://%s/%d", r.Addr, r.DB) }
