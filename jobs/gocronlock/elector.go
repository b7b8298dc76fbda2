package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
)

// Elector lets one host, the leader, run the ticks of all jobs. The other hosts wait for
// leadership in the order in which they came. It implements gocron.Elector, for
// gocron.WithDistributedElector. It is safe for concurrent use.
//
// A run that takes long may still be under way when another host becomes the leader and
// runs the job's next tick. Use a Locker if that must not happen.
type Elector struct {
	client *dibs.Client
	key    string
	skew   time.Duration
	stop   context.CancelFunc
	ended  chan struct{} // closed when the campaign has ended

	mu     sync.Mutex
	lease  *dibs.Lease // nil: another process leads
	why    error       // why there is no lease
	lastly time.Time   // when IsLeader last returned nil
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector that leads if it holds the key, and tries to take it at
// once. skew is how much the clocks of two hosts can differ: a new leader begins that long
// after the last tick of the old one, because otherwise both could run the same tick. At
// most half of the client's TTL. 0: the clocks do not differ.
//
// NewElector returns the errors of dibs.Client.Acquire, except dibs.ErrHeld, because the
// Elector then waits for leadership in the background. The end of ctx ends only the first
// try. Call Close after the scheduler's Shutdown.
func NewElector(ctx context.Context, c *dibs.Client, key string, skew time.Duration) (*Elector, error) {
	if c == nil {
		return nil, errors.New("gocronlock: the client given to NewElector is nil")
	}
	e := &Elector{client: c, key: key, skew: skew, ended: make(chan struct{})}
	lease, err := c.TryAcquire(ctx, key, e.acquire())
	if err != nil && !errors.Is(err, dibs.ErrHeld) {
		return nil, err
	}
	e.become(lease, err)
	ctx, e.stop = context.WithCancel(context.WithoutCancel(ctx))
	go e.campaign(ctx, lease)
	return e, nil
}

// IsLeader returns nil if this process is the leader. Otherwise its error says why not.
// gocron calls it at each tick.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lease == nil {
		return fmt.Errorf("gocronlock: this process is not the leader: %w", e.why)
	}
	if err := e.lease.Err(); err != nil {
		return fmt.Errorf("gocronlock: this process is not the leader any more: %w", err)
	}
	e.lastly = time.Now()
	return nil
}

// Close gives leadership up. From then on IsLeader returns an error. If this process was
// the leader at a tick less than the skew ago, Close first waits for the rest of that time.
func (e *Elector) Close() {
	e.stop()
	<-e.ended
}

// acquire returns the options of the elector's claims.
func (e *Elector) acquire() *dibs.AcquireOptions {
	// With the margin, a leader that has lost its lease stops before the next one begins.
	return &dibs.AcquireOptions{StopTimeout: e.skew, Label: "gocron", Detach: true}
}

// become notes the lease, or why there is none, and returns when IsLeader last returned
// nil.
func (e *Elector) become(lease *dibs.Lease, why error) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lease, e.why = lease, why
	return e.lastly
}

// campaign leads with the lease, if it is not nil, and takes the key again until ctx ends
// or the client is closed.
func (e *Elector) campaign(ctx context.Context, lease *dibs.Lease) {
	defer close(e.ended)
	for {
		if lease != nil {
			e.lead(ctx, lease)
		}
		var err error
		lease, err = e.client.Acquire(ctx, e.key, e.acquire())
		if e.become(lease, err); err == nil {
			continue
		}
		if errors.Is(err, dibs.ErrClosed) || ctx.Err() != nil {
			return
		}
		_ = backoff.Sleep(ctx, retryEvery)
	}
}

// lead leads until ctx ends or the lease is lost.
func (e *Elector) lead(ctx context.Context, lease *dibs.Lease) {
	select {
	case <-ctx.Done():
	case <-lease.Context().Done():
	}
	last := e.become(nil, errors.New("it has given leadership up, or lost it"))
	_ = backoff.Sleep(lease.Context(), e.skew-time.Since(last))
	// A lost lease needs no release. After another error the client continues in the
	// background.
	_ = lease.Release()
}
