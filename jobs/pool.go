package jobs

import "sync"

// Pool is the workers of this process that take the jobs of one queue. At most half of
// them have a job that waits for its turn, for each Mutex: the other half is for other
// keys.
type Pool struct {
	// Name tells the pools of a process apart.
	Name string
	// Workers is how many there are. Default: it is not known, and no job waits: otherwise
	// the job that is next could find no worker.
	Workers int
}

// rooms counts the jobs that wait for their turn in the workers of each pool.
type rooms struct {
	mu      sync.Mutex
	waiting map[string]int
}

// enter takes one of the workers that may have a job that waits. leave gives it back.
func (r *rooms) enter(p Pool) (leave func(), ok bool) {
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
