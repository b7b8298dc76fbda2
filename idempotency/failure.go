package idempotency

import "context"

// Failure is why a handler that stands for another server has no answer of its
// own to give; see Fail.
type Failure uint8

const (
	noFailure Failure = iota
	// Unreached says that the origin was never reached and did nothing. 502, and the
	// key is free.
	Unreached
	// HungUp says that the origin hung up after the request was sent. 502; by
	// Options.OnCrash a retry runs again, or the outcome is unknown.
	HungUp
	// TimedOut says that the origin did not answer in time. 504; otherwise as HungUp.
	TimedOut
	// BrokeOff says that the origin's answer broke off. 502, or a broken transfer when
	// bytes have left; otherwise as HungUp.
	BrokeOff
)

// Fail says, under the context of a guarded request, that its handler failed to
// get an answer from the server it stands for. The handler writes nothing more
// and returns; the Middleware drops what it wrote, answers with a problem
// document, and settles the key. The first call counts.
//
// It returns false, and does nothing, when ctx is not that of a guarded
// request: then the handler answers itself, perhaps with WriteProblem.
func Fail(ctx context.Context, f Failure) bool {
	return fail(ctx, f)
}
