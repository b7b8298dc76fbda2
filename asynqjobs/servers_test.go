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

	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/internal/servertest"
)

// limit is how long anything may take before the test says that it hangs.
const limit = failpoint.Limit

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

// storeURL is that of a store in the same database.
func storeURL(r asynq.RedisClientOpt) string { return fmt.Sprintf("redis://%s/%d", r.Addr, r.DB) }

// must fails the test if something failed that it needs.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until something is so that happens in another process or in Asynq.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	eventuallyWithin(t, limit, what, is)
}

// eventuallyWithin is eventually for what takes longer, which it asks for less often.
func eventuallyWithin(t testing.TB, within time.Duration, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := 2 * time.Millisecond; !is(); pause = min(pause*5/4, 100*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it hangs: after %v it is not so that %s", within, what)
		}
		<-time.After(pause)
	}
}
