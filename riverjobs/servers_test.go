package riverjobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/pgstore"
	"github.com/dibs-go/dibs/redisstore"
)

// scope owns the servers that the tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	if text := os.Getenv(childVar); text != "" {
		if err := beChild(text); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	// Tests that are parallel mostly wait, for servers and for time.
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	code := m.Run()
	scope.Close()
	os.Exit(code)
}

// template is the database from which those of the tests are made: River's tables and
// the store's, and those in which the tests write down what happened.
const template = "riverjobs"

// shared is the server of all tests.
var shared = sync.OnceValue(func() *servertest.PostgresServer {
	s := servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, MaxConnections: 400, Settings: []string{"shared_buffers = 64MB"}})
	must := func(err error) {
		if err != nil {
			scope.Fatalf("%v", err)
		}
	}
	s.Query("CREATE DATABASE " + template)
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, database(s, template))
	must(err)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: silent})
	must(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	must(err)
	must(pgstore.Migrate(ctx, pool, nil))
	_, err = pool.Exec(ctx, `
		CREATE TABLE mark (seq bigserial PRIMARY KEY, key text, number int, what text, attempt text);
		CREATE TABLE effect (seq bigserial PRIMARY KEY, key text, number int);
		CREATE TABLE span (key text, number int, begun bigint, ended bigint)`)
	must(err)
	pool.Close()
	return s
})

// sharedRedis is a Redis for all tests that want one.
var sharedRedis = sync.OnceValue(func() *servertest.RedisServer { return servertest.Redis(scope, nil) })

func database(s *servertest.PostgresServer, name string) string {
	u, err := url.Parse(s.URL())
	if err != nil {
		scope.Fatalf("%v", err)
	}
	u.Path = "/" + name
	return u.String()
}

var databases atomic.Int64

// newDatabase returns the URL of a database that nobody else in this run has.
var newDatabase = func() func(testing.TB) string {
	var one sync.Mutex // the template serves one at a time
	return func(t testing.TB) string {
		t.Helper()
		s := shared()
		one.Lock()
		defer one.Unlock()
		name := fmt.Sprint("own", databases.Add(1))
		s.Query("CREATE DATABASE " + name + " TEMPLATE " + template)
		return database(s, name)
	}
}()

// silent is a logger that says nothing.
var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// job is the arguments of the tests' jobs.
type job struct {
	Of     string `json:"of" dibs:"key,of"`
	Number int    `json:"number"`
}

func (job) Kind() string { return "job" }

// keyOf is the key of the jobs of something.
func keyOf(of string) string { return "of " + url.PathEscape(of) }

// host is what a process of an application has.
type host struct {
	t      testing.TB
	url    string
	pool   *pgxpool.Pool
	store  dibs.Store
	dibs   *dibs.Client
	mutex  *Mutex
	river  *river.Client[pgx.Tx]
	config *river.Config

	closed atomic.Bool
}

// hostOptions say how a host is to be; the zero value has a pgstore in River's
// database, the defaults, and one queue of ten workers.
type hostOptions struct {
	url       string // of its database; one of its own by default
	redis     string // the URL of a Redis that has the keys
	mutex     Options
	commits   bool // Commit ends the key too
	ttl       time.Duration
	river     river.Config
	queue     int // workers
	queueName string
	work      func(ctx context.Context, h *host, j *river.Job[job]) error
	idle      bool // it works no jobs
	untold    bool // the mutex is not told how many workers there are
	untagged  bool // no kind is known
}

// newHost makes a host, which ends with the test.
func newHost(t testing.TB, o hostOptions) *host {
	t.Helper()
	h, err := openHost(t.Context(), t, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func openHost(ctx context.Context, t testing.TB, o hostOptions) (*host, error) {
	h := &host{t: t, url: o.url}
	if h.url == "" {
		h.url = newDatabase(t)
	}
	config, err := pgxpool.ParseConfig(h.url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 16
	if h.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if o.redis != "" {
		h.store, err = redisstore.Open(ctx, o.redis, &redisstore.Options{Prefix: config.ConnConfig.Database})
	} else {
		var s *pgstore.Store
		if s, err = openStore(ctx, h.url); err == nil {
			h.store, o.mutex.Reserver = s, cmpFunc(o.mutex.Reserver, s.Reserver)
			if o.commits {
				o.mutex.Transactor, o.mutex.Tx = s.Transactions(h.pool, nil), pgstore.Tx
			}
		}
	}
	if err != nil {
		return nil, err
	}
	if h.dibs, err = dibs.New(h.store, &dibs.Options{TTL: cmp.Or(o.ttl, 30*time.Second)}); err != nil {
		return nil, err
	}
	if o.mutex.Jobs.Logger == nil {
		o.mutex.Jobs.Logger = silent
	}
	var queues map[string]river.QueueConfig
	if !o.idle {
		queues = map[string]river.QueueConfig{cmp.Or(o.queueName, river.QueueDefault): {MaxWorkers: cmp.Or(o.queue, 10)}}
	}
	if !o.untold {
		o.mutex.Queues = queues
	}
	if h.mutex, err = New(h.dibs, &o.mutex); err != nil {
		return nil, err
	}
	if !o.untagged {
		Tagged[job](h.mutex)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, j *river.Job[job]) error {
		if o.work == nil {
			return nil
		}
		return o.work(ctx, h, j)
	}))
	h.config = &o.river
	h.config.Workers = workers
	h.config.Middleware = append(h.config.Middleware, h.mutex)
	h.config.Logger = silent
	h.config.TestOnly = true
	h.config.FetchCooldown = cmp.Or(h.config.FetchCooldown, 5*time.Millisecond)
	h.config.FetchPollInterval = cmp.Or(h.config.FetchPollInterval, time.Second)
	if h.config.RetryPolicy == nil {
		h.config.RetryPolicy = retryIn(50 * time.Millisecond)
	}
	h.config.Queues = queues
	if h.river, err = river.NewClient(riverpgxv5.New(h.pool), h.config); err != nil {
		return nil, err
	}
	if !o.idle {
		err = h.river.Start(context.Background())
	}
	return h, err
}

// openStore opens the store, also on a machine that is so busy that it takes several
// attempts.
func openStore(ctx context.Context, url string) (s *pgstore.Store, err error) {
	for range 5 {
		if s, err = pgstore.Open(ctx, url, nil); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func cmpFunc(f, otherwise func(pgx.Tx) dibs.Reserver) func(pgx.Tx) dibs.Reserver {
	if f != nil {
		return f
	}
	return otherwise
}

// retryIn is a retry policy.
type retryIn time.Duration

func (r retryIn) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(time.Duration(r)) }

// close ends the host in the order that the README says.
func (h *host) close() error {
	if h.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h.mutex.Close()
	var stopped error
	if len(h.config.Queues) > 0 {
		stopped = h.river.Stop(ctx)
	}
	closed := errors.Join(stopped, h.dibs.Close(), h.store.(io.Closer).Close())
	h.pool.Close()
	return closed
}

// insert inserts a job.
func (h *host) insert(of string, number int, o *river.InsertOpts) *rivertype.JobRow {
	h.t.Helper()
	r, err := h.river.Insert(h.t.Context(), job{Of: of, Number: number}, o)
	if err != nil {
		h.t.Fatal(err)
	}
	return r.Job
}

// row returns how River has a job.
func (h *host) row(id int64) *rivertype.JobRow {
	h.t.Helper()
	row, err := h.river.JobGet(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return row
}

// await waits until River has a job in that state.
func (h *host) await(id int64, state rivertype.JobState) *rivertype.JobRow {
	h.t.Helper()
	var row *rivertype.JobRow
	eventually(h.t, time.Minute, fmt.Sprintf("job %d is %s", id, state), func() bool {
		row = h.row(id)
		return row.State == state
	})
	return row
}

// waiting returns how many places the queue of a key has.
func (h *host) waiting(of string) int {
	h.t.Helper()
	answers := make([]dibs.Answer, 1)
	claim := dibs.Claim{Key: h.dibs.Key(keyOf(of)), Mode: dibs.Look, Permits: 1}
	if err := h.store.Claim(h.t.Context(), []dibs.Claim{claim}, answers); err != nil {
		h.t.Fatal(err)
	}
	return answers[0].Ahead
}

// progress waits until count returns n. When that has not risen for a while, it says
// how River and the store have the jobs and fails the test.
func (h *host) progress(n int, count func() int) {
	h.t.Helper()
	const patience = 40 * time.Second
	most, since := -1, time.Now()
	eventually(h.t, 10*time.Minute, "everything is done", func() bool {
		switch now := count(); {
		case now > most:
			most, since = now, time.Now()
		case time.Since(since) > patience:
			h.report()
			h.t.Fatalf("%d of %d are done, and no more in %v", most, n, patience)
		}
		return most >= n
	})
}

// report says how River and the store have the jobs.
func (h *host) report() {
	for _, sql := range []string{
		`SELECT format('%s: %s, tried %s ago, scheduled in %s, first %s', state, count(*),
			max(now() - attempted_at), max(scheduled_at - now()), (array_agg(args || metadata ORDER BY id))[1])
			FROM river_job GROUP BY state`,
		// The first places, and how River has their jobs.
		`SELECT format('place %s, kind %s, ends in %s, hold %s, pressed %s: job %s %s, tried %s times, %s ago', w.seq, w.kind,
			w.ends - now(), w.hold, w.pressed, j.args, j.state, j.attempt, now() - j.attempted_at)
			FROM (SELECT * FROM dibs_waiter ORDER BY k, seq LIMIT 10) w
			LEFT JOIN river_job j ON j.metadata->'dibs'->>'ticket' LIKE 'dibs1.' || rtrim(translate(encode(w.token, 'base64'), '+/', '-_'), '=') || '.%'`,
		`SELECT format('key %s: busy %s, held until %s from now, %s abandoned', encode(k, 'escape'), busy, ends - now(), abandoned)
			FROM dibs_key WHERE queued LIMIT 5`,
	} {
		rows, err := h.pool.Query(context.Background(), sql)
		if err != nil {
			h.t.Log(err)
			continue
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		h.t.Log(strings.Join(lines, "\n"), err)
	}
}

// eventually waits until something is so that happens elsewhere.
func eventually(t testing.TB, within time.Duration, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-tick.C
	}
}

// spend takes that long, as work does.
func spend(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// asJSON writes what goes to a child.
func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
