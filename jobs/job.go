package jobs

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
)

// Job describes a job to a Mutex.
type Job struct {
	// Kind and ID name the job uniquely within its queue. ID is needed without a Ticket,
	// and for Options.Once.
	Kind, ID string
	// Key excludes other jobs of the same key. A job with the key "" runs at once.
	Key string
	// Ticket is the result of Enqueue. Without one, the job joins the key's queue when it
	// first reaches a worker.
	Ticket string

	// Due is when the job should first run, by the clock of the process that enqueued it.
	// Options.Limit counts from it. Default: when this process first got the job.
	Due time.Time
	// Tries is how often workers got the job, including this time. Default: 1.
	Tries int

	// Final reports whether the job will not be tried again after this error. Default: it
	// will be.
	Final func(error) bool
	// RetryIn returns the time until the next try after this error, if known. Default:
	// soon.
	RetryIn func(error) time.Duration

	// NoRequeue says that the queue cannot requeue the job, so the job waits in the
	// worker.
	NoRequeue bool
	// Patience bounds the wait in the worker, also for the next job, because some queues
	// take a long wait for a stuck job. Default: no limit. Not with NoRequeue.
	Patience time.Duration
	// Pool is the pool of the worker that has the job. It limits neither the policy Wait
	// nor jobs with NoRequeue.
	Pool Pool
	// Promoted says that the queue makes parked jobs runnable when fewer than
	// Options.Ahead jobs of their key come before them; see RequeueError.Parked. Default:
	// the job comes back after a short time.
	Promoted bool
}

// RequeueError says that the job's turn has not come, and that the queue should give it
// to a worker again. It is not a failure.
type RequeueError struct {
	// After is the time until the job should reach a worker again.
	After time.Duration
	// Ahead is an upper bound of the jobs of the key before this one.
	Ahead int
	// Parked says that After is long, and the queue should make the job runnable as soon
	// as fewer than Options.Ahead unfinished jobs of its key come before it.
	Parked bool
}

func (e *RequeueError) Error() string {
	return fmt.Sprintf("jobs: it is not this job's turn; it is requeued for %v", e.After.Round(time.Millisecond))
}

// derived returns the place of a job without a ticket. It is the same in every process
// and at every try.
func (j *Job) derived(key dibs.Key) dibs.Place {
	p := dibs.Place{Key: key}
	copy(p.Token[:], digest("dibs job", key.Namespace, j.Key, j.Kind, j.ID))
	return p
}

// digest returns a digest of the texts, whatever characters they have.
func digest(texts ...string) []byte {
	h := sha256.New()
	for _, s := range texts {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s))) //nolint:gosec // an ID is shorter than 4 GB
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return h.Sum(nil)
}

// label names the job to operators.
func (j *Job) label() string { return strings.TrimSpace(j.Kind + " " + j.ID) }

// last is Final, or its default.
func (j *Job) last(err error) bool { return j.Final != nil && j.Final(err) }

// again is RetryIn, or its default.
func (j *Job) again(err error) time.Duration {
	if j.RetryIn == nil {
		return 0
	}
	return max(j.RetryIn(err), 0)
}
