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

// Mutex lets the jobs of some kinds take turns. It is a River middleware of the client whose
// Config it was made for. It is safe for concurrent use.
type Mutex struct {
	river.MiddlewareDefaults

	jobs    *jobs.Mutex
	options Options
	pool    *pgxpool.Pool
	schema  string
	workers map[string]int // by queue
	retries river.ClientRetryPolicy
	queues  bool // jobs have places in their key's queue
	keeps   bool // a job that waits for its next attempt keeps its place

	mu   sync.Mutex
	keys map[string]keyFunc // by kind
	over map[string]int64   // by key, the ID of the last job that is over
	wake chan struct{}      // over has grown

	end   context.CancelFunc
	ended chan struct{}
}

var (
	_ rivertype.JobInsertMiddleware = (*Mutex)(nil)
	_ rivertype.WorkerMiddleware    = (*Mutex)(nil)
)

// Configure returns a Mutex for the River client that is made with config afterwards, and puts it
// before the other Middleware there. It reads Queues, RetryPolicy and Schema. pool is River's
// database. The keys are in the store of client, which may be another one. Jobs of two River
// databases whose keys are the same exclude each other; give each its own dibs.Options.Namespace
// if they should not.
//
// Tell the Mutex its kinds of jobs with Key or Tagged before the River client is made. Once a
// second, until Close, it makes those parked jobs runnable that a crash has left. The error names
// the option that is wrong.
func Configure(config *river.Config, client *dibs.Client, pool *pgxpool.Pool, o *Options) (*Mutex, error) {
	if config == nil || pool == nil {
		return nil, errors.New("riverjobs: Configure needs River's Config and its pool")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	turns, err := jobs.New(client, &options.Jobs)
	if err != nil {
		return nil, err
	}
	options.Jobs = turns.Options()
	policy := options.Jobs.Policy
	ctx, end := context.WithCancel(context.Background())
	m := &Mutex{
		jobs: turns, options: options, pool: pool, schema: config.Schema,
		workers: map[string]int{}, retries: cmp.Or[river.ClientRetryPolicy](config.RetryPolicy, &river.DefaultClientRetryPolicy{}),
		queues: policy != jobs.Skip && policy != jobs.Periodic,
		keeps:  options.Jobs.Failed == jobs.KeepPlace && policy != jobs.Replace,
		keys:   map[string]keyFunc{}, over: map[string]int64{}, wake: make(chan struct{}, 1),
		end: end, ended: make(chan struct{}),
	}
	for name, queue := range config.Queues {
		m.workers[name] = queue.MaxWorkers
	}
	config.Middleware = append([]rivertype.Middleware{m}, config.Middleware...)
	go func() {
		defer close(m.ended)
		m.run(ctx, defaultSweep)
	}()
	return m, nil
}

// Close sends the jobs that wait in a worker back, to be given to another process, and ends what
// the Mutex does in the background. What runs goes on. Call it before River's Stop, which waits
// for all jobs, and close the dibs client and the pool after that.
func (m *Mutex) Close() {
	m.jobs.Close()
	m.end()
	<-m.ended
}

// Stats counts what happened to the jobs in this process.
func (m *Mutex) Stats() jobs.Stats { return m.jobs.Stats() }

//go:embed sql/index.sql
var indexSQL string

// Migrate makes the index that finds the parked jobs of a key, sql/index.sql, if it is not there.
// Writes go on meanwhile. Run it where River's migrations run; schema is that of River's Config.
// Without the index everything works, but slower with each job in the table.
func Migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	var invalid bool // an earlier run was cut off
	index := in(schema, "@dibs_river_job")
	err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND NOT indisvalid)", index).Scan(&invalid)
	if err == nil && invalid {
		_, err = pool.Exec(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+index)
	}
	if err == nil {
		_, err = pool.Exec(ctx, in(schema, indexSQL))
	}
	if err != nil {
		return fmt.Errorf("riverjobs: making the index %s: %w", index, err)
	}
	return nil
}

// find returns how to find the key of a job of that kind.
func (m *Mutex) find(kind string) (keyFunc, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.keys[kind]
	return f, ok
}
