//go:build nightly

package riverjobs

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// TestLongJobs: jobs may take longer than the lease of their key.
func TestLongJobs(t *testing.T) {
	t.Parallel()
	var l journal
	o := hostOptions{url: newDatabase(), ttl: time.Second, work: func(ctx context.Context, _ *host, j *river.Job[job]) error {
		return l.run(j.Args.Number, func() error { return spend(ctx, 5*time.Second) })
	}}
	h := newHost(t, o)
	newHost(t, o)
	var last *rivertype.JobRow
	for n := range 4 {
		last = h.insert("long", n, nil)
	}
	h.await(last.ID, rivertype.JobStateCompleted)
	// If the machine stands still a lease is lost, and its job begins again.
	if order := l.order(); !slices.IsSorted(order) || order[len(order)-1] != 3 || l.overlaps > 0 {
		t.Errorf("the jobs ran in the order %v, %d beside others", order, l.overlaps)
	}
}
