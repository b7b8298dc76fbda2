// Package riverjobs lets River jobs of one key take turns: they run one after the other, in the
// order in which they were inserted, in however many processes. The jobs of other keys are not
// held up by them.
//
// Of a key's unfinished jobs the first Options.Jobs.Ahead are runnable. All others are parked in
// River's table, so that no worker has them:
//
//	insert ─┬─▶ available ──▶ running: waits for its turn, then works
//	        │       ▲                    │ no room to wait: a snooze, which is no attempt
//	        └─▶ pending   scheduled ◀────┘
//	             (parked)  (parked again)
//
// One idempotent statement makes the next jobs available. The process in which a job of the key
// was over runs it, and a sweep each second for what crashes have left. The order comes from the
// places that are taken when jobs are inserted, and exclusion from the lease of the key: package
// jobs says what that means.
package riverjobs
