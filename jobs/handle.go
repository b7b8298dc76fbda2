package jobs

import "context"

// Handle wraps what a consumer's loop does with a message. describe says what is to
// be known of a message as a job.
//
// What it returns is that of Mutex.Run: nil, the message is done; a *RequeueError, it
// is to be delivered again after that time, and has not failed; anything else, it has
// failed. For a broker that redelivers in no particular order, use the policy Wait, or
// have the Ticket that Enqueue gave travel in the message's headers.
func Handle[M any](m *Mutex, describe func(M) Job, fn func(context.Context, M) error) func(context.Context, M) error {
	return func(ctx context.Context, message M) error {
		return m.Run(ctx, describe(message), func(ctx context.Context) error { return fn(ctx, message) })
	}
}
