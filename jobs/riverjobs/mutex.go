package riverjobs

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// Mutex serializes the jobs of each key. It is a middleware of the River client whose
// Config was given to Configure. It is safe for concurrent use.
type Mutex struct {
	river.MiddlewareDefaults

	jobs    *jobs.Mutex
	options Options
	pool    *pgxpool.Pool
	schema  string
	workers map[string]int // by queue
	retries river.ClientRetryPolicy
	queues  bool // the policy has places
	keeps   bool // a failed job keeps its place

	mu       sync.Mutex
	keys     map[string]keyFunc // by kind
	finished map[string]int64   // by key, the ID of the last finished job
	wake     chan struct{}      // finished has grown

	end   context.CancelFunc
	ended chan struct{}
}

var (
	_ rivertype.JobInsertMiddleware = (*Mutex)(nil)
	_ rivertype.WorkerMiddleware    = (*Mutex)(nil)
)

// Configure returns a Mutex for the River client that will be made with config, and adds
// it before the other Middleware. It reads Queues, RetryPolicy, Schema, Logger, JobTimeout
// and RescueStuckJobsAfter, and logs a warning if the numbers cannot keep the order after a
// crash, or would run a job twice. pool is River's database. The keys are in the client's store, which may be elsewhere. Jobs of
// two River databases with equal keys exclude each other; use another
// dibs.Options.Namespace for each to prevent that.
//
// Call Key or Tagged for each kind before the River client is made. Until Close, the
// Mutex looks once a second for parked jobs that a crash has left, and makes them
// runnable. The error names the wrong option.
func Configure(config *river.Config, client *dibs.Client, pool *pgxpool.Pool, o *Options) (*Mutex, error) {
	if config == nil || pool == nil {
		return nil, errors.New("riverjobs: Configure needs River's Config and its pool")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if options.Jobs.Logger == nil {
		options.Jobs.Logger = config.Logger
	}
	mutex, err := jobs.New(client, &options.Jobs)
	if err != nil {
		return nil, err
	}
	options.Jobs = mutex.Options()
	policy := options.Jobs.Policy
	ctx, end := context.WithCancel(context.Background())
	m := &Mutex{
		jobs: mutex, options: options, pool: pool, schema: config.Schema,
		workers: map[string]int{}, retries: cmp.Or[river.ClientRetryPolicy](config.RetryPolicy, &river.DefaultClientRetryPolicy{}),
		queues: policy != jobs.Skip,
		keeps:  options.Jobs.Failed == jobs.KeepPlace && !policy.Replaces(),
		keys:   map[string]keyFunc{}, finished: map[string]int64{}, wake: make(chan struct{}, 1),
		end: end, ended: make(chan struct{}),
	}
	for name, queue := range config.Queues {
		m.workers[name] = queue.MaxWorkers
	}
	if len(m.workers) > 0 {
		for _, text := range options.warnings(config) {
			options.Jobs.Logger.Warn(text)
		}
	}
	config.Middleware = append([]rivertype.Middleware{m}, config.Middleware...)
	go func() {
		defer close(m.ended)
		m.run(ctx, defaultSweep)
	}()
	return m, nil
}

// Close requeues jobs that wait in a worker, and ends the Mutex's background work.
// Running jobs go on. Call it before River's Stop, which waits for all jobs. Close the
// dibs client and the pool after that.
func (m *Mutex) Close() {
	m.jobs.Close()
	m.end()
	<-m.ended
}

// Stats counts the events of jobs in this process.
func (m *Mutex) Stats() jobs.Stats { return m.jobs.Stats() }

//go:embed sql/index.sql
var indexSQL string

// Migrate creates the index of parked jobs, sql/index.sql, if it does not exist. It does
// not block writes. Call it after River's migrations; schema is that of River's Config.
// Everything works without the index, but slows down as the table grows.
func Migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	var invalid bool // left by an interrupted Migrate
	index := in(schema, "@dibs_river_job")
	err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND NOT indisvalid)", index).Scan(&invalid)
	if err == nil && invalid {
		_, err = pool.Exec(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+index)
	}
	if err == nil {
		_, err = pool.Exec(ctx, in(schema, indexSQL))
	}
	if err != nil {
		return fmt.Errorf("riverjobs: create the index %s: %w", index, err)
	}
	return nil
}

// find returns the key function of a kind.
func (m *Mutex) find(kind string) (keyFunc, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.keys[kind]
	return f, ok
}
