package torture

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/proof/fault"
)

// Options say how to run. URL is needed. Every other zero field has a default.
type Options struct {
	// URL names the store.
	URL string
	// Open opens it. Default: OpenStore.
	Open Open
	// Shown is the URL as it may be printed. Default: it is not printed.
	Shown string

	// Duration is how long faults strike. At least a second. Default: 30 s.
	Duration time.Duration
	// Faults is a list of faults, as fault.ParseList reads it. Default: all that apply and
	// destroy nothing.
	Faults string
	// Seed is what the workers' actions and the faults derive from. Default: a random one.
	Seed uint64
	// Workers is how many processes use the store: 1 to 64. Default: 4.
	Workers int
	// Lanes is how many goroutines each worker has: 1 to 64. Default: 12.
	Lanes int
	// TTL is how long leases last: 200 ms to a minute. Default: 1 s.
	TTL time.Duration
	// Events is about how long the history may become. Default: 250,000.
	Events int

	// Target is what faults strike if the caller owns the server. Run sets its Workers, Wires,
	// TTL and Began. Default: what is at the URL.
	Target *fault.Target

	// Dir is the folder of the histories. Default: a temporary folder, which is removed if the
	// run passes.
	Dir string
	// Log gets what happens during the run. Default: it is discarded.
	Log *slog.Logger

	// Progress, unless nil, is called once a second and at the end, from another goroutine.
	Progress func(Progress)

	wanted fault.List // Faults, parsed
}

// Defaults of Options.
const (
	DefaultDuration = 30 * time.Second
	DefaultWorkers  = 4
	DefaultLanes    = 12
	DefaultTTL      = time.Second
	DefaultEvents   = 250_000
)

// ErrOptions says that Options cannot be run. The error names the field.
var ErrOptions = errors.New("torture")

// Validate returns the ErrOptions that Run would return.
func (o *Options) Validate() error {
	_, err := o.withDefaults()
	return err
}

func (o *Options) withDefaults() (r Options, err error) {
	if o != nil {
		r = *o
	}
	r.Duration = cmp.Or(r.Duration, DefaultDuration)
	r.Workers = cmp.Or(r.Workers, DefaultWorkers)
	r.Lanes = cmp.Or(r.Lanes, DefaultLanes)
	r.TTL = cmp.Or(r.TTL, DefaultTTL)
	r.Events = cmp.Or(r.Events, DefaultEvents)
	for r.Seed == 0 {
		r.Seed = rand.Uint64() >> 16 // short enough to be typed
	}
	if r.Open == nil {
		r.Open = OpenStore
	}
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case r.URL == "":
		return r, fmt.Errorf("%w: Options.URL is missing: name a store", ErrOptions)
	case r.Duration < time.Second:
		return r, fmt.Errorf("%w: Options.Duration is %v; it must be at least 1s", ErrOptions, r.Duration)
	case r.Workers < 1 || r.Workers > 64:
		return r, fmt.Errorf("%w: Options.Workers is %d; it must be 1 to 64", ErrOptions, r.Workers)
	case r.Lanes < 1 || r.Lanes > 64:
		return r, fmt.Errorf("%w: Options.Lanes is %d; it must be 1 to 64", ErrOptions, r.Lanes)
	case r.TTL < 200*time.Millisecond || r.TTL > time.Minute:
		return r, fmt.Errorf("%w: Options.TTL is %v; it must be 200ms to 1m", ErrOptions, r.TTL)
	case r.Events < 1000:
		return r, fmt.Errorf("%w: Options.Events is %d; it must be at least 1000", ErrOptions, r.Events)
	}
	if r.wanted, err = fault.ParseList(r.Faults); err != nil {
		return r, fmt.Errorf("%w: Options.Faults: %w", ErrOptions, err)
	}
	return r, nil
}
