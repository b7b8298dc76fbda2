package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/jobs/asynqjobs"
	"github.com/dibs-go/dibs/jobs/riverjobs"
	"github.com/dibs-go/dibs/sqllock"
	"github.com/dibs-go/dibs/stores/pgstore"
	"github.com/dibs-go/dibs/stores/redisstore"
)

const (
	jobWorkers    = 50   // that run jobs
	jobsARound    = 2000 // each side's
	jobsEnqueued  = 100  // at once, by each goroutine that enqueues
	jobEnqueuers  = 4
	jobFetchPause = 5 * time.Millisecond // how soon a queue looks for more jobs
)

// jobQueue is a queue on its own server.
type jobQueue struct {
	*candidates
	// enqueue enqueues jobs, those that are mutexed each with a key of its own.
	enqueue func(ctx context.Context, n int, mutexed bool) error

	keys   atomic.Int64
	takes  atomic.Int64 // how long each job takes
	mu     sync.Mutex
	left   int
	allRan chan struct{}
}

// ran is what each job does.
func (q *jobQueue) ran() {
	time.Sleep(time.Duration(q.takes.Load()))
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.left--; q.left == 0 {
		close(q.allRan)
	}
}

// rate returns how many jobs a second are enqueued and run.
func (q *jobQueue) rate(ctx context.Context, mutexed bool) float64 {
	q.left, q.allRan = jobsARound, make(chan struct{})
	start := time.Now()
	each("enqueueing", jobEnqueuers, func(*atomic.Pointer[error], int) (err error) {
		for range jobsARound / jobEnqueuers / jobsEnqueued {
			err = errors.Join(err, q.enqueue(ctx, jobsEnqueued, mutexed))
		}
		return err
	})
	select {
	case <-q.allRan:
	case <-time.After(time.Minute):
		must(errors.New("the jobs are not done after a minute"))
	case <-ctx.Done():
		must(context.Cause(ctx))
	}
	return jobsARound / time.Since(start).Seconds()
}

// jobRates measures jobs with a mutex, each on a key of its own, against the same jobs
// without.
func jobRates(open func(context.Context, *jobQueue), takes time.Duration) func(context.Context, config) figure {
	return with(alone, func(ctx context.Context, c config, b *candidates) figure {
		q := &jobQueue{candidates: b}
		open(ctx, q)
		q.takes.Store(int64(takes))
		rate := func(mutexed bool) side {
			return func(ctx context.Context, _ int) float64 { return q.rate(ctx, mutexed) }
		}
		return interleave(ctx, c, "jobs/s", rate(true), rate(false))
	})
}

// key returns a new key.
func (q *jobQueue) key() string { return "key " + strconv.FormatInt(q.keys.Add(1), 10) }

// riverPlain and riverMutexed are the two kinds of jobs on River.
type (
	riverPlain   struct{}
	riverMutexed struct {
		On string `json:"on" dibs:"key,on"`
	}
)

// Kind implements river.JobArgs.
func (riverPlain) Kind() string { return "plain" }

// Kind implements river.JobArgs.
func (riverMutexed) Kind() string { return "mutexed" }

// openRiver starts River on PostgreSQL, and mutexes in the same database.
func openRiver(ctx context.Context, q *jobQueue) {
	pool := get(pgxpool.New(ctx, servertest.Postgres(q, &servertest.PostgresOptions{MaxConnections: 200}).URL()))
	q.Cleanup(pool.Close)
	driver := riverpgxv5.New(pool)
	migrator := get(rivermigrate.New(driver, &rivermigrate.Config{Logger: silent}))
	get(migrator.Migrate(ctx, rivermigrate.DirectionUp, nil))
	store := get(pgstore.New(ctx, pool, &pgstore.Options{Migrate: true}))
	client := q.client(store, store.Close, nil)
	must(riverjobs.Migrate(ctx, pool, ""))
	rconf := &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: jobWorkers}},
		FetchCooldown: jobFetchPause, Workers: river.NewWorkers(), Logger: silent,
	}
	mutex := get(riverjobs.Configure(rconf, client, pool, &riverjobs.Options{Jobs: jobs.Options{Logger: silent}}))
	riverjobs.Tagged[riverMutexed](mutex)
	river.AddWorker(rconf.Workers, river.WorkFunc(func(context.Context, *river.Job[riverPlain]) error { q.ran(); return nil }))
	river.AddWorker(rconf.Workers, river.WorkFunc(func(context.Context, *river.Job[riverMutexed]) error { q.ran(); return nil }))
	rc := get(river.NewClient(driver, rconf))
	must(rc.Start(ctx))
	q.Cleanup(func() {
		mutex.Close()
		_ = rc.Stop(context.WithoutCancel(ctx))
	})
	q.enqueue = func(ctx context.Context, n int, mutexed bool) error {
		params := make([]river.InsertManyParams, n)
		for i := range params {
			params[i].Args = riverPlain{}
			if mutexed {
				params[i].Args = riverMutexed{On: q.key()}
			}
		}
		_, err := rc.InsertMany(ctx, params)
		return err
	}
}

var silent = slog.New(slog.DiscardHandler)

// openAsynq starts Asynq on Redis, and mutexes on the same server.
func openAsynq(ctx context.Context, q *jobQueue) {
	addr := servertest.Redis(q, nil).Addr()
	store := get(redisstore.Open(ctx, "redis://"+addr, nil))
	redis := asynq.RedisClientOpt{Addr: addr}
	mutex := get(asynqjobs.New(redis, q.client(store, store.Close, nil), &asynqjobs.Options{Jobs: jobs.Options{Logger: silent}}))
	q.Cleanup(func() { _ = mutex.Close() })
	plain := asynq.NewClient(redis)
	q.Cleanup(func() { _ = plain.Close() })
	mux := asynq.NewServeMux()
	mux.Use(mutex.Middleware)
	mux.HandleFunc("job", func(context.Context, *asynq.Task) error { q.ran(); return nil })
	server := asynq.NewServer(redis, asynqjobs.Config(asynq.Config{
		Concurrency: jobWorkers, TaskCheckInterval: jobFetchPause, LogLevel: asynq.FatalLevel,
	}))
	must(server.Start(mux))
	q.Cleanup(func() {
		mutex.Stop()
		server.Shutdown()
	})
	q.enqueue = func(ctx context.Context, n int, mutexed bool) (err error) {
		for range n {
			if mutexed {
				_, err = mutex.EnqueueContext(ctx, asynqjobs.NewTask("job", nil, q.key()))
			} else {
				_, err = plain.EnqueueContext(ctx, asynq.NewTask("job", nil))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

const (
	numberBatch = 100
	writers     = 16
)

// sequenceNumbers compares the numbers that writers of one scope get, a hundred in a
// transaction that also writes a row for each, with one number above the largest, taken in a
// transaction under an advisory lock.
var sequenceNumbers = with(alone, func(ctx context.Context, c config, b *candidates) figure {
	url := servertest.Postgres(b, nil).URL()
	pool := b.pgxPool(ctx, url)
	numbers := get(sqllock.NewSequence(sqllock.PostgreSQL, nil))
	must(numbers.Migrate(ctx, b.pgxSQL(url)))
	for _, table := range []string{"invoice", "invoice_by_hand"} {
		get(pool.Exec(ctx, "CREATE TABLE "+table+" (tenant text, number bigint, customer text NOT NULL, PRIMARY KEY (tenant, number))"))
	}
	writing := func(name string, batch int, write func(context.Context, pgx.Tx) error) side {
		return func(ctx context.Context, _ int) float64 {
			return float64(batch) * rate(ctx, name, writers, c.round, func(ctx context.Context, _, _ int) error { return inTransaction(ctx, pool, write) })
		}
	}
	ours := writing(ours, numberBatch, func(ctx context.Context, tx pgx.Tx) error {
		first, err := numbers.NextN(ctx, tx, "acme", numberBatch)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO invoice SELECT 'acme', n, 'cus_8841' FROM generate_series($1::bigint, $2) n", first, first+numberBatch-1)
		return err
	})
	f := interleave(ctx, c, fmt.Sprintf("numbers/s, by %d writers of one scope", writers), ours, writing("MAX+1", 1, byMax))
	// If a number is missing, what was measured is worth nothing.
	var rows, last int64
	must(pool.QueryRow(ctx, "SELECT count(*), max(number) FROM invoice").Scan(&rows, &last))
	if rows != last {
		must(fmt.Errorf("of %d numbers %d are there", last, rows))
	}
	return f
})

// byMax takes a number as people do by hand.
func byMax(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('acme', 0))"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO invoice_by_hand
		SELECT 'acme', coalesce(max(number), 0) + 1, 'cus_8841' FROM invoice_by_hand WHERE tenant = 'acme'`)
	return err
}

func inTransaction(ctx context.Context, pool *pgxpool.Pool, write func(context.Context, pgx.Tx) error) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	if err := write(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}
