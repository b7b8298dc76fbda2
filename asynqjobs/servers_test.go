package asynqjobs

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/internal/servertest"
)

// scope owns the servers that the tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	if plan := os.Getenv(planVar); plan != "" {
		if err := beChild(plan, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	// Tests that are parallel mostly wait, for servers and for time.
	if err := flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	code := m.Run()
	scope.Close()
	os.Exit(code)
}

const databases = 200

var sharedRedis = sync.OnceValue(func() *servertest.RedisServer {
	return servertest.Redis(scope, &servertest.RedisOptions{Databases: databases})
})

var sharedPostgres = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, MaxConnections: 200})
})

var used atomic.Int64

// ownRedis returns a database that nobody else in this run has.
func ownRedis(t testing.TB) asynq.RedisClientOpt {
	t.Helper()
	n := int(used.Add(1))
	if n >= databases {
		t.Fatal("there are no databases left; let the server have more")
	}
	return asynq.RedisClientOpt{Addr: sharedRedis().Addr(), DB: n}
}

// aloneRedis returns a server that nobody else has: what is published on one is heard by
// those of all of its databases.
func aloneRedis(t testing.TB) asynq.RedisClientOpt {
	t.Helper()
	return asynq.RedisClientOpt{Addr: servertest.Redis(t, nil).Addr()}
}

// storeURL is that of a store in the same database.
func storeURL(r asynq.RedisClientOpt) string { return fmt.Sprintf("redis://%s/%d", r.Addr, r.DB) }

// eventually waits until what it asks for is so: for what happens in other processes
// and in Asynq, of which nothing here can be told. What takes longer is asked for less
// often.
func eventually(t testing.TB, within time.Duration, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := 2 * time.Millisecond; !is(); pause = min(pause*5/4, 200*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-time.After(pause)
	}
}
