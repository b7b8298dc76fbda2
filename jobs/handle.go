package jobs

import "context"

// Handle wraps the handler of a consumer loop. describe turns a message into a Job.
//
// The result is that of Mutex.Run: nil: the message is done. A *RequeueError: deliver it
// again after that time; it has not failed. Any other error: it has failed. If the broker
// redelivers in any order, use the policy Wait, or send the text of Enqueue in the
// message's headers.
func Handle[M any](m *Mutex, describe func(M) Job, fn func(context.Context, M) error) func(context.Context, M) error {
	return func(ctx context.Context, message M) error {
		return m.Run(ctx, describe(message), func(ctx context.Context) error { return fn(ctx, message) })
	}
}
