// Package riverjobs is a mutex for River jobs. Jobs of one key run one after the other, in the
// order in which they were inserted, in any number of processes. Jobs of other keys are not
// delayed.
//
// The first Options.Jobs.Ahead unfinished jobs of a key are runnable. The others are parked in
// River's table, so that no worker gets them:
//
//	insert ─┬─▶ available ──▶ running: waits for its turn, then works
//	        │       ▲                    │ cannot wait: a snooze, which uses no try
//	        └─▶ pending   scheduled ◀────┘
//	             (parked)  (parked again)
//
// One idempotent statement makes the next jobs available. The process that finished a job of the
// key runs it, and so does a sweep each second, for jobs that a crash has left. The order comes from
// places that are reserved when jobs are inserted, and exclusion from the lease of the key; see
// package jobs.
package riverjobs
