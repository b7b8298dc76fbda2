package asynqjobs

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// Client enqueues tasks with a key, and takes their places. It is safe for concurrent
// use.
type Client struct {
	asynq *asynq.Client
	mutex *jobs.Mutex
}

// NewClient returns a Client that enqueues with c. Neither is closed by it.
func NewClient(c *asynq.Client, m *jobs.Mutex) *Client {
	return &Client{asynq: c, mutex: m}
}

// Enqueue is EnqueueContext without a context.
func (c *Client) Enqueue(task *Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	return c.EnqueueContext(context.Background(), task, opts...)
}

// EnqueueContext takes the task's place and enqueues it. Tasks of a key run in the
// order of these calls, as far as one began after the other had returned. A task that
// is to run later (ProcessIn, ProcessAt) takes its place when it does, and one of a
// Group has none.
//
// Asynq says that the task's MaxRetry is one more than asked for; see GetMaxRetry.
//
// The errors are those of asynq.Client.EnqueueContext and jobs.Mutex.Enqueue. After an
// error the place is given back.
func (c *Client) EnqueueContext(ctx context.Context, task *Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if task == nil {
		return nil, errors.New("asynqjobs: there is no task to enqueue: it is nil")
	}
	opts = append(task.Options[:len(task.Options):len(task.Options)], opts...)
	if task.Key == "" {
		return c.asynq.EnqueueContext(ctx, asynq.NewTaskWithHeaders(task.Type, task.Payload, task.Headers), opts...)
	}
	if err := (dibs.Key{Name: task.Key}).Validate(); err != nil {
		return nil, err
	}
	now := time.Now()
	wish := wishOf(opts, now)
	var ticket string
	if wish.at.IsZero() && !wish.grouped {
		var err error
		if ticket, err = c.mutex.Enqueue(ctx, task.Key); err != nil {
			return nil, err
		}
	}
	opts = append(opts, asynq.MaxRetry(wish.maxRetry+spare))
	info, err := c.asynq.EnqueueContext(ctx, asynq.NewTaskWithHeaders(task.Type, task.Payload, task.headers(wish, ticket, now)), opts...)
	if err != nil {
		// Also when it is not known whether the task is there: if it is, it joins the
		// others when a worker has it.
		c.mutex.Cancel(ctx, ticket)
		return nil, err
	}
	return info, nil
}
