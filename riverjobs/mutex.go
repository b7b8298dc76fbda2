package riverjobs

import (
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// Mutex lets the jobs of some kinds take turns. It is a River middleware, for clients
// that insert jobs and for those that work them, and may serve several clients. It is
// safe for concurrent use once it was told its kinds.
type Mutex struct {
	river.MiddlewareDefaults

	jobs    *jobs.Mutex
	options Options
	keys    map[string]keyFunc // by kind
	workers map[string]int     // by queue
}

var (
	_ rivertype.JobInsertMiddleware = (*Mutex)(nil)
	_ rivertype.WorkerMiddleware    = (*Mutex)(nil)
)

// New returns a Mutex whose keys are in the client's store, which need not be River's
// database. The error names the option that is wrong. Jobs of two River databases
// whose keys are the same exclude each other; give each its own dibs.Options.Namespace
// if they should not.
func New(c *dibs.Client, o *Options) (*Mutex, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m, err := jobs.New(c, &options.Jobs)
	if err != nil {
		return nil, err
	}
	workers := map[string]int{}
	for name, queue := range options.Queues {
		workers[name] = queue.MaxWorkers
	}
	return &Mutex{jobs: m, options: options, keys: map[string]keyFunc{}, workers: workers}, nil
}

// Close sends the jobs that wait in a worker back, and makes those available that were
// put off, to be given to another process. What runs goes on. Call it before River's
// Stop, which waits for all jobs, and close the dibs client after that. It takes 5 s at
// most.
func (m *Mutex) Close() { m.jobs.Close() }

// Stats counts what happened to the jobs in this process.
func (m *Mutex) Stats() jobs.Stats { return m.jobs.Stats() }
