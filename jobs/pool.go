package jobs

import "sync"

// Pool is the workers of this process that take the jobs of one queue. For each Mutex, at
// most half of them wait for a job's turn, because the other half is for other keys.
type Pool struct {
	// Name identifies the pool in this process.
	Name string
	// Workers is the number of workers. Default: unknown, and no job waits in a worker,
	// because waiting jobs could use up all workers.
	Workers int
}

// poolWaits counts the workers of each pool that wait for a job's turn.
type poolWaits struct {
	mu      sync.Mutex
	waiting map[string]int
}

// enter lets one more worker wait. leave ends that.
func (r *poolWaits) enter(p Pool) (leave func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[p.Name] >= p.Workers/2 {
		return nil, false
	}
	if r.waiting == nil {
		r.waiting = map[string]int{}
	}
	r.waiting[p.Name]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.waiting[p.Name]--
	}, true
}
