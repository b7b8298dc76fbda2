package riverjobs

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// journal is what jobs of one key did.
type journal struct {
	mu       sync.Mutex
	begun    []int
	running  int
	overlaps int
}

// run notes that a job runs while fn does.
func (l *journal) run(number int, fn func() error) error {
	l.mu.Lock()
	l.begun = append(l.begun, number)
	if l.running++; l.running > 1 {
		l.overlaps++
	}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running--
	}()
	return fn()
}

// order returns the numbers of the jobs that ran, as they began.
func (l *journal) order() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.begun)
}

// await waits until as many have begun, and checks that none of them overlapped.
func (l *journal) await(t testing.TB, want ...int) {
	t.Helper()
	testkit.Eventually(t, "jobs have run", func() bool { return len(l.order()) >= len(want) })
	l.check(t, want...)
}

func (l *journal) check(t testing.TB, want ...int) {
	t.Helper()
	if got := l.order(); !slices.Equal(got, want) {
		t.Errorf("the jobs ran in the order %v, want %v", got, want)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overlaps > 0 {
		t.Errorf("%d jobs ran beside others of their key", l.overlaps)
	}
}

// work is what a job does that is noted.
type work = func(context.Context, *host, *river.Job[job]) error

// noted is work that ends at once.
func (l *journal) noted() work { return l.gated(nil) }

// gatedHost returns a host in which job 1 runs until the gate is closed.
func gatedHost(t *testing.T, o hostOptions) (h *host, l *journal, gate chan struct{}, first *rivertype.JobRow) {
	t.Helper()
	l, gate = &journal{}, make(chan struct{})
	o.work = l.gated(gate)
	h = newHost(t, o)
	first = h.insert("it", 1, nil)
	l.await(t, 1)
	return h, l, gate, first
}

// gated is work in which the job 1 waits until the gate is closed, and all note that they ran.
func (l *journal) gated(gate <-chan struct{}) work {
	return func(ctx context.Context, _ *host, j *river.Job[job]) error {
		return l.run(j.Args.Number, func() error {
			if j.Args.Number == 1 && gate != nil {
				select {
				case <-gate:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return nil
		})
	}
}
