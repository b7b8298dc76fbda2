package jobs

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
)

// Job is what a Mutex has to know of a job that a worker has.
type Job struct {
	// Kind and ID name the job: no two of one queue have both the same. ID is
	// needed unless there is a Ticket, and for Options.Once.
	Kind, ID string
	// Key is what jobs exclude each other by. A job without one just runs.
	Key string
	// Ticket is what Enqueue gave, and travels with the job. Without one the job
	// joins the others of its key when it reaches a worker for the first time.
	Ticket string

	// Due is when the job was to run first, by the clock of the process that enqueued it;
	// Options.Limit counts from then. Default: from when this process has it first.
	Due time.Time
	// Tries is how often a worker had the job, this time included, if the queue
	// tells. Default: 1.
	Tries int

	// Final reports whether the job is not tried again after it ended with that
	// error. Default: it is tried again.
	Final func(error) bool
	// RetryIn returns when it is tried again after that error, as far as is known.
	// Default: soon.
	RetryIn func(error) time.Duration

	// NoRequeue says that the job cannot come back without losing something: it waits
	// in the worker.
	NoRequeue bool
	// Patience is how long it may wait in the worker before it comes back, also when
	// it would be next: for queues that take a job which waits for one that is stuck.
	// Default: without limit. Not with NoRequeue.
	Patience time.Duration
	// Pool is the workers of which one has the job. It does not bound the policy Wait, nor
	// jobs with NoRequeue.
	Pool Pool
	// Promoted says that the queue makes a parked job runnable when fewer than
	// Options.Ahead jobs of its key come before it; see RequeueError.Parked. Default: the
	// job comes back after a short time.
	Promoted bool
}

// RequeueError says that the job's turn has not come and that it is to be given to
// a worker again after that time. It is not a failure.
type RequeueError struct {
	After time.Duration
	// Ahead is how many jobs of the key come before it, at most.
	Ahead int
	// Parked says that the queue should make the job runnable earlier, as soon as fewer
	// than Options.Ahead unfinished jobs of its key come before it: After is long.
	Parked bool
}

func (e *RequeueError) Error() string {
	return fmt.Sprintf("jobs: it is not this job's turn; it comes back in %v", e.After.Round(time.Millisecond))
}

// derived returns the place of a job without a ticket, the same in each process and
// at each attempt.
func (j *Job) derived(key dibs.Key) dibs.Place {
	h := sha256.New()
	for _, s := range []string{"dibs job", key.Namespace, j.Key, j.Kind, j.ID} {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s))) //nolint:gosec // the ID of a job has not 4 GB
		h.Write(n[:])
		h.Write([]byte(s))
	}
	p := dibs.Place{Key: key}
	copy(p.Token[:], h.Sum(nil))
	return p
}

// last and again are Final and RetryIn with their defaults.
func (j *Job) last(err error) bool { return j.Final != nil && j.Final(err) }

func (j *Job) again(err error) time.Duration {
	if j.RetryIn == nil {
		return 0
	}
	return max(j.RetryIn(err), 0)
}
