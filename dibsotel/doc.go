// Package dibsotel makes OpenTelemetry metrics of claims, leases, calls of the store,
// guarded requests and jobs, and spans of those that belong to a trace.
//
//	telemetry, err := dibsotel.New(nil) // of the global providers
//	…
//	client, err := dibs.New(store, &dibs.Options{Observe: telemetry.Lease, ObserveStore: telemetry.StoreCall})
//	guard, err := idempotency.New(client, &idempotency.Options{Observe: telemetry.Request, Trace: dibsotel.Trace})
//	mutex, err := jobs.New(client, &jobs.Options{Observe: telemetry.Job})
//	locks, err := sqllock.NewAdvisory(ctx, db, &sqllock.AdvisoryOptions{Observe: telemetry.Lease})
//
// The locks of sqllock count as claims and leases: those of sessions, and with Observe of RowLock,
// LockTxOptions, TransactOptions, SequenceOptions and GuardOptions those of transactions. They have
// no fence, and dibs.queued is false, because the server does not say whether a caller waited: the
// claim's duration is the wait. A lock of the application's own transaction is a claim only, because
// its end is not seen.
//
// # Metrics
//
// Names and units follow OpenTelemetry's semantic conventions. No attribute contains a key,
// a credential, a label or another text of a client, so the number of series is bounded.
//
//	dibs.claim.duration        histogram, s   by dibs.outcome (acquired, or the reason of the refusal), dibs.queued: from the claim to its answer
//	dibs.claim.undone          counter        claims undone because the caller's context ended or the answer was lost
//	dibs.lease.active          up-down        leases held now
//	dibs.lease.duration        histogram, s   by dibs.outcome: released, completed, abandoned, lost
//	dibs.store.call.duration   histogram, s   by dibs.call (claim, renew, settle), and error.type if it failed
//	dibs.store.call.elements   counter        by dibs.call: claims, renewals and settlements in those calls
//	dibs.request.duration      histogram, s   by dibs.outcome (idempotency.EventKind): every request, once
//	dibs.request.unstored      counter        answers that were sent without being stored
//	dibs.job.count             counter        by dibs.outcome (jobs.EventKind)
//	dibs.job.duration          histogram, s   by dibs.phase: waiting, running
//
// A grant with dibs.queued is a hand-over; the elements of "renew" are renewals. A request's
// duration begins when its body has been read. The counts of dibs.request.duration add up
// to all requests.
//
// error.type is canceled if the caller ended the call, timeout if the store did not answer in
// time, and otherwise what the error's method ErrorType() string returns: unreachable,
// unauthorized, read_only, full and others, which docs/operate/incidents.md lists. An error without that
// method is _OTHER.
//
// # Spans
//
// Spans are made only if the context has a sampled span, so dibs never begins a trace:
// dibs.claim, or dibs.wait if the caller had to wait; dibs.run while the key is held;
// dibs.settle; and dibs.replay, with a link to the trace of the original run. Each span has
// the key's digest, the fence and the attempt. It is made when it is over.
package dibsotel
