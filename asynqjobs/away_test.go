package asynqjobs

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

// TestStoreAway: a store that does not answer costs a task none of its attempts: it
// comes back, and runs when the store is there again.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	memory, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	store := &outage{Store: memory}
	f := newFixtureOn(t, store, ownRedis(t), nil)
	var did record
	f.serve(t, asynq.Config{ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { did.add("%v", err) })},
		func(ctx context.Context, _ *asynq.Task) error {
			n, _ := asynq.GetRetryCount(ctx)
			did.add("ran after %d retries", n)
			return nil
		})
	store.away.Store(true)
	if _, err := f.plain.Enqueue(asynq.NewTask("plain", []byte("k"), asynq.MaxRetry(1))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is put off", func() bool { return putOffs(t, f) > 0 })
	store.away.Store(false)
	did.is(t, "ran after 0 retries")
	info, err := f.inspector.GetQueueInfo("default")
	if err != nil || info.Failed != 0 || info.Archived != 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

// outage is a store that can be away.
type outage struct {
	*memstore.Store
	away atomic.Bool
}

var errAway = errors.New("the store is away")

func (o *outage) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if o.away.Load() {
		return errAway
	}
	return o.Store.Claim(ctx, claims, answers)
}
