package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
)

// With Replace and CancelRunning, a record names the newest job of a key that has reached a
// worker. The job writes it, not the enqueue, because an enqueue that is rolled back must
// not end the jobs before it.

// newest is that record.
type newest struct {
	Number   uint64 // of the enqueue; 0: no job has reached a worker
	Kind, ID string
}

// ReplacedError is the cause with which the context of a running job ends when a newer job
// of its key has reached a worker (CancelRunning).
type ReplacedError struct {
	// Kind and ID are those of the newer Job.
	Kind, ID string
}

func (e *ReplacedError) Error() string {
	return "jobs: the newer job " + strings.TrimSpace(e.Kind+" "+e.ID) + " of the same key replaces this one"
}

// newestKey is the name of the key with that record.
func newestKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "dibs newest job " + hex.EncodeToString(sum[:])
}

// number returns the number of an enqueue, higher than all earlier numbers of the key.
func (m *Mutex) number(ctx context.Context, key string) (uint64, error) {
	lease, err := m.client.Acquire(ctx, newestKey(key), &dibs.AcquireOptions{TTL: m.options.TTL})
	if err != nil {
		return 0, err
	}
	n := lease.Fence()
	_ = lease.Release() // after an error the client continues in the background
	return n, nil
}

// newest returns the newest job that has reached a worker.
func (a *attempt) newest(ctx context.Context) (n newest, err error) {
	r, ok, err := a.mutex.client.Record(ctx, newestKey(a.job.Key))
	if err != nil || !ok {
		return n, err
	}
	if err := json.Unmarshal(r.Data, &n); err != nil {
		return n, fmt.Errorf("jobs: the record of the newest job of key %s cannot be read: %w", a.place.Key.Digest(), err)
	}
	return n, nil
}

// outdated reports whether a newer job has reached a worker. It is false for a job
// without a number.
func (a *attempt) outdated(ctx context.Context) (bool, error) {
	if a.number == 0 {
		return false, nil
	}
	n, err := a.newest(ctx)
	return n.Number > a.number, err
}

// markNewest records that the job has reached a worker, and reports whether a newer job
// has.
func (a *attempt) markNewest(ctx context.Context) (newer bool, err error) {
	n, err := a.newest(ctx)
	if err != nil || a.number == 0 || n.Number >= a.number {
		return a.number > 0 && n.Number > a.number, err
	}
	data, err := json.Marshal(newest{a.number, a.job.Kind, a.job.ID})
	if err != nil {
		return false, err
	}
	m := a.mutex
	err = m.client.Do(ctx, newestKey(a.job.Key), func(ctx context.Context) error {
		if n, err = a.newest(ctx); err != nil || n.Number >= a.number {
			return err
		}
		lease, _ := dibs.FromContext(ctx)
		return lease.Complete(ctx, data, m.options.PlaceTTL)
	})
	return n.Number > a.number, err
}

// cancelEvery is how often a job that runs with CancelRunning asks for a newer one.
const cancelEvery = time.Second

// cancelIfOutdated calls cancel when a newer job has reached a worker. It ends with the
// lease.
func (a *attempt) cancelIfOutdated(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(cancelEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		// After an error the job runs on, because the newer one waits for it.
		if n, err := a.newest(ctx); err == nil && n.Number > a.number {
			cancel(&ReplacedError{Kind: n.Kind, ID: n.ID})
			return
		}
	}
}

// replaced ends a job that a newer job has replaced.
func (a *attempt) replaced(ctx context.Context) error {
	a.giveUp(ctx, a.place)
	a.mutex.report(ctx, a, EventReplaced, nil)
	return nil
}
