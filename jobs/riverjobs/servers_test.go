package riverjobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
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
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/pgstore"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// scope owns the servers that the tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) { testkit.Main(m, testkit.Children{"river": beChild}, scope.Close) }

// template is the database from which those of the tests are made: River's tables and
// the store's, and those in which the tests write down what happened.
const template = "riverjobs"

// shared is the server of all tests.
var shared = sync.OnceValue(func() *servertest.PostgresServer {
	s := servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, MaxConnections: 400, Settings: []string{"shared_buffers = 64MB"}})
	s.Query("CREATE DATABASE " + template)
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, database(s, template))
	if err == nil {
		defer pool.Close()
		err = errors.Join(migrateRiver(ctx, pool, ""), pgstore.Migrate(ctx, pool, nil), Migrate(ctx, pool, ""))
	}
	if err == nil {
		_, err = pool.Exec(ctx, `
			CREATE TABLE mark (seq bigserial PRIMARY KEY, key text, number int, what text, attempt text);
			CREATE TABLE effect (seq bigserial PRIMARY KEY, key text, number int)`)
	}
	if err != nil {
		scope.Fatalf("%v", err)
	}
	return s
})

func migrateRiver(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: schema, Logger: silent})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	return err
}

func database(s *servertest.PostgresServer, name string) string {
	u, err := url.Parse(s.URL())
	if err != nil {
		scope.Fatalf("%v", err)
	}
	u.Path = "/" + name
	return u.String()
}

var databases atomic.Int64

// one keeps NewDatabase from itself: the template serves one at a time.
var one sync.Mutex

// NewDatabase returns the URL of a database of the test's own. The example is in another package.
func NewDatabase() string {
	s := shared()
	one.Lock()
	defer one.Unlock()
	name := fmt.Sprint("own", databases.Add(1))
	s.Query("CREATE DATABASE " + name + " TEMPLATE " + template)
	return database(s, name)
}

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
	seed   uint64 // of what happens by chance

	closed atomic.Bool
}

// hostOptions describe a host; the zero value has a pgstore in River's
// database, the defaults, and one queue of ten workers.
type hostOptions struct {
	url      string     // of its database; one of its own by default
	keys     dibs.Store // that has the keys; closed with the host
	redis    string     // the URL of a Redis that has the keys
	mutex    Options
	outside  bool // places are not taken in transactions
	commits  bool // Commit ends the key too
	ttl      time.Duration
	river    river.Config
	queue    int // workers
	work     func(ctx context.Context, h *host, j *river.Job[job]) error
	outer    rivertype.Middleware // around the mutex, if not nil
	inner    rivertype.Middleware // behind it, if not nil
	idle     bool                 // it works no jobs
	unswept  bool                 // its mutex does nothing in the background
	promotes bool                 // its mutex promotes after a job, and does not sweep
	untagged bool                 // no kind is known
	seed     uint64
	logger   *slog.Logger // of River; silent by default
}

// newHost makes a host, which ends with the test.
func newHost(t testing.TB, o hostOptions) *host {
	t.Helper()
	h, err := openHost(t.Context(), t, o)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, h.close()) })
	return h
}

func openHost(ctx context.Context, t testing.TB, o hostOptions) (*host, error) {
	h := &host{t: t, url: o.url, seed: o.seed, config: &o.river}
	if h.url == "" {
		h.url = NewDatabase()
	}
	var err error
	if h.pool, err = pgxpool.New(ctx, h.url+"&pool_max_conns=16"); err != nil {
		return nil, err
	}
	switch {
	case o.keys != nil:
		h.store = o.keys
	case o.redis != "":
		h.store, err = redisstore.Open(ctx, o.redis, &redisstore.Options{Prefix: h.pool.Config().ConnConfig.Database})
	default:
		var s *pgstore.Store
		if s, err = pgstore.Open(ctx, h.url, nil); err == nil {
			h.store = &reaching{s}
			if !o.outside {
				o.mutex.Reserver = s.Reserver
			}
			if o.commits {
				o.mutex.Transactor, o.mutex.Tx = stopping{s.Transactions(h.pool, nil)}, stoppingTx
			}
		}
	}
	if err != nil {
		return nil, err
	}
	if h.dibs, err = dibs.New(h.store, &dibs.Options{TTL: cmp.Or(o.ttl, 30*time.Second)}); err != nil {
		return nil, err
	}
	c := h.config
	c.Workers, c.Logger, c.TestOnly = river.NewWorkers(), cmp.Or(o.logger, silent), true
	c.FetchCooldown = 5 * time.Millisecond
	c.FetchPollInterval = cmp.Or(c.FetchPollInterval, time.Second)
	c.RetryPolicy = soon{}
	if !o.idle {
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: cmp.Or(o.queue, 10)}}
	}
	if o.inner != nil {
		c.Middleware = []rivertype.Middleware{o.inner}
	}
	if h.mutex, err = Configure(c, h.dibs, h.pool, &o.mutex); err != nil {
		return nil, err
	}
	if o.unswept || o.promotes {
		h.mutex.end()
		<-h.mutex.ended
	}
	if o.promotes {
		go h.mutex.run(t.Context(), time.Hour)
	}
	if o.outer != nil {
		c.Middleware = append([]rivertype.Middleware{o.outer}, c.Middleware...)
	}
	if !o.untagged {
		Tagged[job](h.mutex)
	}
	river.AddWorker(c.Workers, river.WorkFunc(func(ctx context.Context, j *river.Job[job]) error {
		if o.work == nil {
			return nil
		}
		return o.work(ctx, h, j)
	}))
	if h.river, err = river.NewClient(riverpgxv5.New(h.pool), c); err != nil {
		return nil, err
	}
	if !o.idle {
		err = h.river.Start(context.Background())
	}
	return h, err
}

// soon is a retry policy.
type soon struct{}

func (soon) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(50 * time.Millisecond) }

// close ends the host in the order that the README says.
func (h *host) close() error {
	if h.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
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
	h.must(nil, err)
	return r.Job
}

// inserts inserts the jobs with these numbers.
func (h *host) inserts(of string, first, last int) (rows []*rivertype.JobRow) {
	h.t.Helper()
	for n := first; n <= last; n++ {
		rows = append(rows, h.insert(of, n, nil))
	}
	return rows
}

// must ends the test if something went wrong.
func (h *host) must(_ any, err error) {
	h.t.Helper()
	testkit.Must(h.t, err)
}

func (h *host) exec(sql string, args ...any) {
	h.t.Helper()
	h.must(h.pool.Exec(h.t.Context(), sql, args...))
}

// count returns the number that a query returns.
func (h *host) count(sql string, args ...any) (n int) {
	h.t.Helper()
	h.must(nil, h.pool.QueryRow(h.t.Context(), sql, args...).Scan(&n))
	return n
}

// row returns how River has a job.
func (h *host) row(id int64) *rivertype.JobRow {
	h.t.Helper()
	row, err := h.river.JobGet(h.t.Context(), id)
	h.must(nil, err)
	return row
}

// completed waits until jobs are completed, and checks that none of them used an attempt.
func (h *host) completed(rows ...*rivertype.JobRow) {
	h.t.Helper()
	for _, row := range rows {
		if row = h.await(row.ID, rivertype.JobStateCompleted); row.Attempt != 1 || len(row.Errors) > 0 {
			h.t.Errorf("job %d is at its attempt %d, with the errors %v", row.ID, row.Attempt, row.Errors)
		}
	}
}

// checkFetches checks that no job was given to a worker more than twice.
func (h *host) checkFetches() {
	h.t.Helper()
	if n := h.fetches(); n > 2 {
		h.t.Errorf("a job was fetched %d times", n)
	}
}

// await waits until River has a job in that state.
func (h *host) await(id int64, state rivertype.JobState) *rivertype.JobRow {
	h.t.Helper()
	var row *rivertype.JobRow
	testkit.Eventually(h.t, fmt.Sprintf("job %d is %s", id, state), func() bool {
		row = h.row(id)
		return row.State == state
	})
	return row
}

// waiting returns how many places the queue of a key has.
func (h *host) waiting(of string) int {
	h.t.Helper()
	answers := make([]store.Answer, 1)
	claim := store.Claim{Key: h.dibs.Key(keyOf(of)), Mode: store.Look, Permits: 1, Weight: 1}
	h.must(nil, h.store.Claim(h.t.Context(), []store.Claim{claim}, answers))
	return answers[0].Ahead
}

// journal is what jobs of one key did.
type journal struct {
	mu       sync.Mutex
	begun    []int
	running  int
	overlaps int
}

// run notes that a job runs while fn does.
func (l *journal) run(number int, fn func() error) error {
	l.mu.Lock()
	l.begun = append(l.begun, number)
	if l.running++; l.running > 1 {
		l.overlaps++
	}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running--
	}()
	return fn()
}

// order returns the numbers of the jobs that ran, as they began.
func (l *journal) order() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.begun)
}

// await waits until as many have begun, and checks that none of them overlapped.
func (l *journal) await(t testing.TB, want ...int) {
	t.Helper()
	testkit.Eventually(t, "jobs have run", func() bool { return len(l.order()) >= len(want) })
	l.check(t, want...)
}

func (l *journal) check(t testing.TB, want ...int) {
	t.Helper()
	if got := l.order(); !slices.Equal(got, want) {
		t.Errorf("the jobs ran in the order %v, want %v", got, want)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overlaps > 0 {
		t.Errorf("%d jobs ran beside others of their key", l.overlaps)
	}
}

// work is what a job does that is noted.
type work = func(context.Context, *host, *river.Job[job]) error

// noted is work that ends at once.
func (l *journal) noted() work { return l.gated(nil) }

// gatedHost returns a host in which job 1 runs until the gate is closed.
func gatedHost(t *testing.T, o hostOptions) (h *host, l *journal, gate chan struct{}, first *rivertype.JobRow) {
	t.Helper()
	l, gate = &journal{}, make(chan struct{})
	o.work = l.gated(gate)
	h = newHost(t, o)
	first = h.insert("it", 1, nil)
	l.await(t, 1)
	return h, l, gate, first
}

// gated is work in which the job 1 waits until the gate is closed, and all note that they ran.
func (l *journal) gated(gate <-chan struct{}) work {
	return func(ctx context.Context, _ *host, j *river.Job[job]) error {
		return l.run(j.Args.Number, func() error {
			if j.Args.Number == 1 && gate != nil {
				select {
				case <-gate:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return nil
		})
	}
}
