// Package riverjobs lets River jobs of one key take turns: they run one after the
// other, in the order in which they were inserted, in however many processes, and the
// jobs of all other keys are not held up by them. What that means is said by package
// jobs; this is its middleware for River.
//
//	client.Insert ── middleware ── a place is taken, its ticket travels in the job's metadata
//	(InsertTx, InsertMany, …)      (with Options.Reserver: in the transaction that inserts the job)
//
//	worker ── middleware ──┬── its turn: Work runs, the key is renewed meanwhile
//	                       ├── near its turn, and a seat is free: waits in the worker
//	                       └── otherwise: snoozed, which is no attempt, and made available
//	                           again when it is near its turn
//
// A Mutex is told by Key or Tagged which kinds of jobs it is for, and is one of the
// Middleware of every River client that inserts or works them. Clients that cannot
// have it (other languages, SQL) may insert jobs too: such a job joins the others of
// its key when it reaches a worker for the first time.
package riverjobs
