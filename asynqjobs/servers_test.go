package asynqjobs

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// scope owns the servers that the tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests that are parallel mostly wait, for servers and for time.
	if err := flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	code := m.Run()
	scope.Close()
	os.Exit(code)
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

// must fails the test if something failed that it needs.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until something is so that happens in another process or in Asynq. What
// takes longer than other things has a time of its own.
func eventually(t testing.TB, what string, is func() bool, within ...time.Duration) {
	t.Helper()
	limit := slices.Max(append(within, testkit.Limit))
	deadline := time.Now().Add(limit)
	for pause := 2 * time.Millisecond; !is(); pause = min(pause*5/4, 100*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it hangs: after %v it is not so that %s", limit, what)
		}
		<-time.After(pause)
	}
}
