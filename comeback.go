package dibs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Otherwise is what becomes of a call that came back in vain as often as it
// may. There is no default: the caller has to choose.
type Otherwise uint8

const (
	// Fail returns the ErrHeld of the last attempt.
	Fail Otherwise = iota + 1
	// RunAnyway runs without the key. fn can tell: its context carries no lease.
	RunAnyway
	// GiveUp hands the call to ComeBackOptions.GaveUp, which has to note it
	// down, and returns ErrGaveUp.
	GiveUp
)

// ErrGaveUp says that the key was held at every attempt, and the call was noted down
// instead of run.
var ErrGaveUp = errors.New("dibs: gave up and noted it down")

// ComeBackOptions say how often to come back to a key that is held, and what
// happens when that was in vain.
type ComeBackOptions struct {
	// Attempts is how often the key is tried in all. Default: 8.
	Attempts int
	// Backoff is how long to stay away after the first attempt; each time twice
	// as long, up to MaxBackoff. The time stayed away is drawn at random from
	// the upper half, so that callers who came together do not come back
	// together. Defaults: 100 ms and 10 s.
	Backoff    time.Duration
	MaxBackoff time.Duration

	// Otherwise is what happens after the last attempt. It must be chosen.
	Otherwise Otherwise
	// GaveUp notes down a call that was given up: in a dead-letter table, a
	// queue, a file. Its error is joined to ErrGaveUp. Required with GiveUp.
	GaveUp func(ctx context.Context, g GivenUp) error

	// Acquire are the options of each attempt; NoWait is implied.
	Acquire AcquireOptions
}

// GivenUp is a call that did not run.
type GivenUp struct {
	Key      string
	Attempts int
	Since    time.Time // of the first attempt
	Err      error     // of the last one
}

func (o *ComeBackOptions) withDefaults() (ComeBackOptions, error) {
	if o == nil {
		return ComeBackOptions{}, errors.New("dibs: ComeBack was given no options; Otherwise must be chosen")
	}
	r := *o
	r.Attempts = cmp.Or(r.Attempts, 8)
	r.Backoff = cmp.Or(r.Backoff, 100*time.Millisecond)
	r.MaxBackoff = cmp.Or(r.MaxBackoff, max(10*time.Second, r.Backoff))
	switch {
	case r.Attempts < 1:
		return r, fmt.Errorf("dibs: ComeBackOptions.Attempts is %d; it must be at least 1", r.Attempts)
	case r.Backoff < 0 || r.MaxBackoff < r.Backoff:
		return r, fmt.Errorf("dibs: ComeBackOptions.Backoff is %v and MaxBackoff is %v; they must not be negative nor fall",
			r.Backoff, r.MaxBackoff)
	case r.Otherwise < Fail || r.Otherwise > GiveUp:
		return r, errors.New("dibs: ComeBackOptions.Otherwise must be Fail, RunAnyway or GiveUp")
	case (r.Otherwise == GiveUp) != (r.GaveUp != nil):
		return r, errors.New("dibs: ComeBackOptions.GaveUp and Otherwise: GiveUp need one another")
	}
	r.Acquire.NoWait = true
	return r, nil
}

// ComeBack runs fn while it holds the key, like Do, but for callers who would
// rather come back than wait in the queue: whose place in a queue would not
// outlive them, or who must not occupy a worker's connection while they wait.
// Nobody who waits is passed by, so under load those who wait come first; what
// happens when the attempts run out is the caller's explicit choice.
//
// It returns what fn returned (joined with ErrLost as in Do), ErrHeld or
// ErrGaveUp after the last attempt, and any other error of Acquire at once.
func (c *Client) ComeBack(ctx context.Context, key string, o *ComeBackOptions, fn func(context.Context) error) error {
	options, err := o.withDefaults()
	if err != nil {
		return err
	}
	start := time.Now()
	backoff := options.Backoff
	for attempt := 1; ; attempt++ {
		lease, err := c.Acquire(ctx, key, &options.Acquire)
		switch {
		case err == nil:
			return lease.run(fn)
		case !errors.Is(err, ErrHeld):
			return err
		case attempt == options.Attempts:
			return options.otherwise(ctx, GivenUp{Key: key, Attempts: attempt, Since: start, Err: err}, fn)
		}
		c.sleep(ctx, backoff/2+rand.N(backoff/2+1))
		backoff = min(2*backoff, options.MaxBackoff)
	}
}

// otherwise does what the caller chose for a call that came back in vain.
func (o *ComeBackOptions) otherwise(ctx context.Context, g GivenUp, fn func(context.Context) error) error {
	switch o.Otherwise {
	case RunAnyway:
		return fn(ctx)
	case GiveUp:
		return errors.Join(ErrGaveUp, o.GaveUp(ctx, g))
	}
	return g.Err
}
