package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs/jobs"
)

// job is what the webhook's handler enqueues.
type job struct {
	number int    // of the event, as they arrived
	ticket string // its place; only with jobs.Mutex
	failed int
}

// queue is a job queue: a worker takes a job that is due. A job that failed is due again
// after 10 ms, then 20 ms and so on. A job that failed too often is dropped.
type queue struct {
	tries   int
	due     chan *job
	open    sync.WaitGroup // of jobs
	mu      sync.Mutex
	dropped []error
}

func newQueue(tries int) *queue { return &queue{tries: tries, due: make(chan *job, 100)} }

func (q *queue) add(j *job) {
	q.open.Add(1)
	q.due <- j
}

const workers = 2

// start starts the workers.
func (q *queue) start(ctx context.Context, handle func(context.Context, *job) error) {
	for range workers {
		go q.work(ctx, handle)
	}
}

func (q *queue) work(ctx context.Context, handle func(context.Context, *job) error) {
	for j := range q.due {
		q.back(j, handle(ctx, j))
	}
}

// back takes a job back from its worker.
func (q *queue) back(j *job, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	again := func() { q.due <- j }
	if requeue, ok := errors.AsType[*jobs.RequeueError](err); ok { // not a failure
		time.AfterFunc(requeue.After, again)
		return
	}
	if err != nil {
		if j.failed++; j.failed < q.tries {
			time.AfterFunc(10*time.Millisecond<<(j.failed-1), again)
			return
		}
		q.dropped = append(q.dropped, err)
	}
	q.open.Done()
}

// drain waits until no job is left, and returns the errors of dropped jobs.
func (q *queue) drain() []error {
	q.open.Wait()
	close(q.due)
	return q.dropped
}

var errTaken = errors.New("another worker has the lock")

// lock is SET NX with an expiry before the job, and DEL after it.
type lock struct {
	expiry time.Duration
	mu     sync.Mutex
	until  time.Time
}

func (l *lock) around(handle func(context.Context, *job) error) func(context.Context, *job) error {
	return func(ctx context.Context, j *job) error {
		l.mu.Lock()
		taken := time.Now().Before(l.until)
		if !taken {
			l.until = time.Now().Add(l.expiry)
		}
		l.mu.Unlock()
		if taken {
			return errTaken
		}
		defer func() {
			l.mu.Lock()
			l.until = time.Time{}
			l.mu.Unlock()
		}()
		return handle(ctx, j)
	}
}
