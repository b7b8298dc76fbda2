package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/dibs-go/dibs"
)

// With Replace, a record has the number of the newest job of a key that has reached a
// worker. The job writes it, not the enqueue, because an enqueue that is rolled back must
// not end the jobs before it.

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
	_ = lease.Release() // after an error the client goes on in the background
	return n, nil
}

// newest returns the number of the newest job that has reached a worker, or 0.
func (a *attempt) newest(ctx context.Context) (uint64, error) {
	r, ok, err := a.mutex.client.Record(ctx, newestKey(a.job.Key))
	if err != nil || !ok {
		return 0, err
	}
	n, err := strconv.ParseUint(string(r.Data), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("jobs: the record of the newest job of key %s cannot be read: %w", a.place.Key.Digest(), err)
	}
	return n, nil
}

// outdated reports whether a newer job has reached a worker. It is false for a job
// without a number.
func (a *attempt) outdated(ctx context.Context) (bool, error) {
	if a.number == 0 {
		return false, nil
	}
	newest, err := a.newest(ctx)
	return newest > a.number, err
}

// markNewest records that the job has reached a worker, and reports whether a newer job
// has.
func (a *attempt) markNewest(ctx context.Context) (newer bool, err error) {
	newest, err := a.newest(ctx)
	if err != nil || a.number == 0 || newest >= a.number {
		return a.number > 0 && newest > a.number, err
	}
	m := a.mutex
	err = m.client.Do(ctx, newestKey(a.job.Key), func(ctx context.Context) error {
		if newest, err = a.newest(ctx); err != nil || newest >= a.number {
			return err
		}
		lease, _ := dibs.FromContext(ctx)
		return lease.Complete(ctx, strconv.AppendUint(nil, a.number, 10), m.options.PlaceTTL)
	})
	return newest > a.number, err
}

// replaced ends a job that a newer job has replaced.
func (a *attempt) replaced(ctx context.Context) error {
	a.giveUp(ctx, a.place)
	a.mutex.report(ctx, a, EventReplaced, nil)
	return nil
}
