package jobs

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Handle wraps the handler of a consumer loop. describe turns a message into a Job.
//
// The result is that of Mutex.Run: nil: the message is done. A *RequeueError: deliver it
// again after that time; it has not failed. Any other error: it has failed. If the broker
// redelivers in any order, use the policy Wait, or send the text of Enqueue in the
// message's headers.
//
// Handle panics if describe or fn is nil.
func Handle[M any](m *Mutex, describe func(M) Job, fn func(context.Context, M) error) func(context.Context, M) error {
	need("Handle", describe == nil || fn == nil)
	return func(ctx context.Context, message M) error {
		return m.Run(ctx, describe(message), func(ctx context.Context) error { return fn(ctx, message) })
	}
}

// HandleBatch is Handle for a consumer that gets its messages in batches, and acknowledges
// or commits the messages of a batch one by one. The result has the error of each message
// at its index, as Handle returns it. Acknowledge the messages whose error is nil.
//
// The messages of one key run one after the other, in the order of their tickets, or
// without tickets in the order of the batch. Those of other keys, and those without a key,
// run at the same time, at most workers at once. Less than 1 worker means 1. With the
// policies Requeue and Wait, a message that failed and will be tried again keeps back the
// later messages of its key, unless Options.Failed is LetPass: they do not run, and their
// errors are *RequeueErrors.
//
// HandleBatch returns when its last message is over. So Options.Wait or Job.Patience should
// be well below the time after which the broker delivers the batch again. After a message
// was requeued, the later messages of its key do not wait in the worker. If fn panics, the
// program ends. HandleBatch panics if describe or fn is nil.
func HandleBatch[M any](m *Mutex, workers int, describe func(M) Job, fn func(context.Context, M) error) func(context.Context, []M) []error {
	need("HandleBatch", describe == nil || fn == nil)
	return func(ctx context.Context, batch []M) []error {
		jobs, errs := make([]Job, len(batch)), make([]error, len(batch))
		for i, message := range batch {
			jobs[i], errs[i] = describe(message), errNotReturned // until it has returned
		}
		room := make(chan struct{}, max(workers, 1))
		var wg sync.WaitGroup
		for _, group := range byKey(jobs) {
			room <- struct{}{}
			wg.Go(func() {
				defer func() { <-room }()
				m.runGroup(ctx, group, jobs, errs, func(ctx context.Context, i int) error { return fn(ctx, batch[i]) })
			})
		}
		wg.Wait()
		return errs
	}
}

// need panics before a message is taken if a function of the call is missing.
func need(call string, missing bool) {
	if missing {
		panic("jobs: " + call + " needs a function that describes a message, and one that handles it; one of them is nil")
	}
}

// byKey returns the indexes of the jobs, those of a key together. A job without a key is
// alone.
func byKey(jobs []Job) (groups [][]int) {
	of := map[string]int{}
	for i, j := range jobs {
		g, ok := of[j.Key]
		if !ok || j.Key == "" {
			g = len(groups)
			of[j.Key] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], i)
	}
	return groups
}

// runGroup runs jobs of one key and writes their errors.
func (m *Mutex) runGroup(ctx context.Context, group []int, jobs []Job, errs []error, fn func(context.Context, int) error) {
	var back error // of the jobs that are kept back
	requeued := false
	for _, i := range group {
		if back != nil {
			errs[i] = back
			continue
		}
		j := jobs[i]
		if requeued {
			j.Patience = time.Millisecond // its turn has come, or comes after the batch
		}
		err := m.Run(ctx, j, func(ctx context.Context) error { return fn(ctx, i) })
		errs[i] = err
		switch _, again := errors.AsType[*RequeueError](err); {
		case again:
			requeued = true
		case err != nil && m.options.keepsOrder() && !j.last(err):
			back = &RequeueError{After: max(j.again(err), requeueSoon), Ahead: 1}
		}
	}
}
