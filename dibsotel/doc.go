// Package dibsotel tells OpenTelemetry what happens to keys: metrics of claims, leases,
// the store, guarded requests and jobs, and spans of those that belong to a trace.
//
//	telemetry, err := dibsotel.New(nil) // of the global providers
//	…
//	client, err := dibs.New(store, &dibs.Options{Observe: telemetry.Lease, ObserveStore: telemetry.StoreCall})
//	guard, err := idempotency.New(client, &idempotency.Options{Observe: telemetry.Request, Trace: dibsotel.Trace})
//	mutex, err := jobs.New(client, &jobs.Options{Observe: telemetry.Job})
//
// # Metrics
//
// Names and units follow OpenTelemetry's semantic conventions. No attribute has a key, a
// credential, a label or a name that a client chose, so that the number of series is fixed.
//
//	dibs.claim.duration        histogram, s   by dibs.outcome (acquired, or why not), dibs.queued: from the question to the grant or the refusal
//	dibs.claim.undone          counter        claims undone because the caller went away or the answer was lost
//	dibs.lease.active          up-down        leases held now
//	dibs.lease.duration        histogram, s   by dibs.outcome: released, completed, abandoned, lost
//	dibs.store.call.duration   histogram, s   by dibs.call (claim, renew, settle), and error.type of those that failed
//	dibs.store.call.elements   counter        by dibs.call: claims, renewals and settlements in those calls
//	dibs.request.duration      histogram, s   by dibs.outcome (idempotency.Outcome): every request, once
//	dibs.request.unstored      counter        answers that were sent before the store took them
//	dibs.job.count             counter        by dibs.outcome (jobs.EventKind)
//	dibs.job.duration          histogram, s   by dibs.phase: waiting, running
//
// A grant with dibs.queued is a hand-over; the elements of "renew" are renewals. A request's
// duration begins when its body has been read. The counts of dibs.request.duration add up
// to the requests.
//
// # Spans
//
// There are spans where the context has one that is sampled, so nothing of dibs begins a trace:
// dibs.claim, or dibs.wait if the caller had to wait; dibs.run while the key is held;
// dibs.settle; and dibs.replay, with a link to the trace of the run whose answer it is. Each
// has the key's digest, the fence and the attempt. It is made when what it describes is over.
package dibsotel
