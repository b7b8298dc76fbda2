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
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/jobs/asynqjobs"
	"github.com/dibs-go/dibs/jobs/riverjobs"
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
func (q *jobQueue) rate(ctx context.Context, mutexed bool) (float64, error) {
	q.left, q.allRan = jobsARound, make(chan struct{})
	start := time.Now()
	errs := make(chan error, jobEnqueuers)
	for range jobEnqueuers {
		go func() {
			for range jobsARound / jobEnqueuers / jobsEnqueued {
				if err := q.enqueue(ctx, jobsEnqueued, mutexed); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range jobEnqueuers {
		if err := <-errs; err != nil {
			return 0, err
		}
	}
	select {
	case <-q.allRan:
	case <-time.After(time.Minute):
		return 0, errors.New("the jobs are not done after a minute")
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	return jobsARound / time.Since(start).Seconds(), nil
}

// jobRates measures jobs with a mutex, each on a key of its own, against the same jobs
// without.
func jobRates(open func(context.Context) (*jobQueue, error), takes time.Duration) func(context.Context, config) (figure, error) {
	return func(ctx context.Context, c config) (figure, error) {
		q, err := open(ctx)
		if err != nil {
			return figure{}, err
		}
		defer q.end()
		q.takes.Store(int64(takes))
		rate := func(mutexed bool) func(context.Context, time.Duration) (float64, error) {
			return func(ctx context.Context, _ time.Duration) (float64, error) { return q.rate(ctx, mutexed) }
		}
		return interleave(ctx, c, "jobs/s", rate(true), rate(false))
	}
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
func openRiver(ctx context.Context) (q *jobQueue, err error) {
	q = &jobQueue{candidates: newCandidates()}
	defer func() {
		if err != nil {
			q.end()
		}
	}()
	server := servertest.Postgres(q.scope, &servertest.PostgresOptions{MaxConnections: 200})
	pool, err := pgxpool.New(ctx, server.URL())
	if err != nil {
		return q, err
	}
	q.close = append(q.close, pool.Close)
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return q, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return q, err
	}
	store, err := pgstore.New(ctx, pool, &pgstore.Options{Migrate: true})
	if err != nil {
		return q, err
	}
	client, err := q.mutexes(store, store.Close)
	if err != nil {
		return q, err
	}
	if err := riverjobs.Migrate(ctx, pool, ""); err != nil {
		return q, err
	}
	rconf := &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: jobWorkers}},
		FetchCooldown: jobFetchPause, Workers: river.NewWorkers(), Logger: slog.New(slog.DiscardHandler),
	}
	mutex, err := riverjobs.Configure(rconf, client, pool, &riverjobs.Options{Jobs: jobs.Options{Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		return q, err
	}
	riverjobs.Tagged[riverMutexed](mutex)
	river.AddWorker(rconf.Workers, river.WorkFunc(func(context.Context, *river.Job[riverPlain]) error { q.ran(); return nil }))
	river.AddWorker(rconf.Workers, river.WorkFunc(func(context.Context, *river.Job[riverMutexed]) error { q.ran(); return nil }))
	rc, err := river.NewClient(driver, rconf)
	if err != nil {
		return q, err
	}
	if err := rc.Start(ctx); err != nil {
		return q, err
	}
	q.close = append(q.close, func() {
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
	return q, nil
}

// mutexes returns a dibs client on the store.
func (q *jobQueue) mutexes(store dibs.Store, closeStore func() error) (*dibs.Client, error) {
	q.close = append(q.close, func() { _ = closeStore() })
	client, err := dibs.New(store, nil)
	if err == nil {
		q.close = append(q.close, func() { _ = client.Close() })
	}
	return client, err
}

// openAsynq starts Asynq on Redis, and mutexes on the same server.
func openAsynq(ctx context.Context) (q *jobQueue, err error) {
	q = &jobQueue{candidates: newCandidates()}
	defer func() {
		if err != nil {
			q.end()
		}
	}()
	addr := servertest.Redis(q.scope, nil).Addr()
	store, err := redisstore.Open(ctx, "redis://"+addr, nil)
	if err != nil {
		return q, err
	}
	client, err := q.mutexes(store, store.Close)
	if err != nil {
		return q, err
	}
	redis := asynq.RedisClientOpt{Addr: addr}
	mutex, err := asynqjobs.New(redis, client, &asynqjobs.Options{Jobs: jobs.Options{Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		return q, err
	}
	q.close = append(q.close, func() { _ = mutex.Close() })
	plain := asynq.NewClient(redis)
	q.close = append(q.close, func() { _ = plain.Close() })
	mux := asynq.NewServeMux()
	mux.Use(mutex.Middleware)
	mux.HandleFunc("job", func(context.Context, *asynq.Task) error { q.ran(); return nil })
	server := asynq.NewServer(redis, asynqjobs.Config(asynq.Config{
		Concurrency: jobWorkers, TaskCheckInterval: jobFetchPause, LogLevel: asynq.FatalLevel,
	}))
	if err := server.Start(mux); err != nil {
		return q, err
	}
	q.close = append(q.close, func() {
		mutex.Stop()
		server.Shutdown()
	})
	q.enqueue = func(ctx context.Context, n int, mutexed bool) error {
		for range n {
			var err error
			if mutexed {
				_, err = mutex.EnqueueContext(ctx, asynqjobs.NewTask("job", nil, q.key()))
			} else {
				_, err = plain.EnqueueContext(ctx, asynq.NewTask("job", nil))
			}
			if err != nil {
				return fmt.Errorf("enqueueing: %w", err)
			}
		}
		return nil
	}
	return q, nil
}
