package proof_test

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of the proofs, which may know everything. Only peers, the benchmarks and the trial know the peers.
func TestHouse(t *testing.T) {
	const (
		root = house.Root
		unix = "golang.org/x/sys/unix"
	)
	house.Check(t, []house.Room{
		{Dir: ".", Tests: []string{root + "/internal/prove/house"}},
		{Dir: "history", Imports: []string{root + "/store", unix}, Tests: []string{root, root + "/stores/memstore"}},
		{Dir: "check", Imports: []string{root + "/store", root + "/proof/history", "github.com/anishathalye/porcupine"}},
		{Dir: "fault", Imports: []string{
			root + "/internal/backoff", root + "/internal/prove/wire", root + "/stores/pgstore", root + "/stores/mysqlstore", unix,
			"github.com/redis/rueidis", "github.com/jackc/pgx/v5/...", "github.com/go-sql-driver/mysql", "modernc.org/sqlite",
		}, Tests: []string{
			root + "/proof/target", root + "/internal/prove/failpoint", root + "/internal/prove/servertest", root + "/stores/anystore",
		}},
		{Dir: "target", Imports: []string{root + "/internal/prove/wire", root + "/proof/fault", root + "/internal/prove/servertest", unix}},
		{Dir: "browser", Tests: []string{
			root + "/store", root + "/stores/memstore", root + "/page", root + "/internal/prove/servertest",
			"github.com/chromedp/chromedp", "github.com/chromedp/chromedp/kb", "github.com/chromedp/cdproto/emulation", "github.com/chromedp/cdproto/page", "github.com/chromedp/cdproto/runtime",
		}},
		{Dir: "workload", Imports: []string{root, root + "/store", root + "/proof/history"}},
		{
			Dir:     "torture",
			Imports: []string{root, root + "/proof/workload", root + "/store", root + "/stores/anystore", root + "/stores/mysqlstore", root + "/stores/pgstore", root + "/stores/sqlitestore", "github.com/go-sql-driver/mysql", "github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/stdlib", root + "/internal/backoff", root + "/internal/prove/wire", root + "/proof/check", root + "/proof/fault", root + "/proof/history"},
			Tests:   []string{root + "/proof/target", root + "/internal/prove/bysql", root + "/stores/casstore/etcd", "go.etcd.io/etcd/client/v3", "go.uber.org/zap"},
		},
		{Dir: "sim", Imports: []string{root, root + "/proof/workload", root + "/store", root + "/jobs", root + "/stores/casstore", root + "/stores/memstore", root + "/internal/backoff", root + "/proof/history"}, Tests: []string{root + "/proof/check"}},
		{Dir: "peers", Imports: []string{
			root + "/proof/torture", root + "/internal/prove/servertest",
			"github.com/bsm/redislock", "github.com/go-redsync/redsync/v4/...", "github.com/redis/go-redis/v9",
			"github.com/redis/rueidis/rueidislock", "cirello.io/pglock", "github.com/jackc/pgx/v5/...", "go.etcd.io/etcd/client/v3/...", "go.uber.org/zap",
		}},
		{Dir: "bench", Imports: []string{
			root, root + "/store", root + "/idempotency", root + "/stores/memstore", root + "/stores/sqlitestore",
			root + "/stores/redisstore", root + "/stores/pgstore", root + "/stores/mysqlstore", root + "/stores/casstore", root + "/stores/casstore/etcd", root + "/stores/casstore/s3",
			root + "/sqllock", root + "/jobs", root + "/dibsotel", "go.opentelemetry.io/otel/...", "github.com/prometheus/client_golang/prometheus", root + "/jobs/riverjobs", root + "/jobs/asynqjobs",
			"github.com/riverqueue/river/...", "github.com/hibiken/asynq", root + "/internal/prove/draw", root + "/internal/prove/progress", root + "/internal/prove/servertest",
			root + "/proof/peers", root + "/proof/torture", "github.com/valyala/fasthttp",
			"github.com/redis/rueidis/...", "github.com/jackc/pgx/v5/...", "github.com/redis/go-redis/v9", "cirello.io/pglock", "github.com/lib/pq",
		}, Tests: []string{"modernc.org/sqlite"}},
		{Dir: "release", Tests: []string{root + "/internal/prove/servertest"}},
		{Dir: "trial", Imports: []string{
			root, root + "/store", root + "/stores/anystore", root + "/stores/casstore/etcd", root + "/proof/fault", root + "/proof/peers", root + "/proof/target", root + "/proof/torture", root + "/internal/prove/servertest",
			"github.com/redis/go-redis/v9", "github.com/redis/rueidis/...", "github.com/lib/pq", "github.com/jackc/pgx/v5/...", "github.com/go-sql-driver/mysql",
		}, Tests: []string{root + "/internal/prove/wire", root + "/proof/check", root + "/proof/history"}},
	})
}
