package casstore

import (
	"cmp"
	"fmt"
	"time"
)

const defaultTick = 250 * time.Millisecond

// Options are the settings of a Store. Nil and the zero value mean the defaults.
type Options struct {
	// Tick is how often a process that holds or waits for a key moves the clock, and how often it
	// looks whether the turn of a waiter has come; default 250 ms, at least 1 ms. All processes of
	// a store have the same.
	Tick time.Duration

	// MaxWaiters bounds the queue of one key; default 1,000. A claim that would make it longer gets
	// store.ErrFull.
	MaxWaiters int

	// MaxObject bounds the object of a key, in bytes; default 1,500,000. What would make it larger, a
	// record above all, gets store.ErrTooLarge. Data takes a third more than its size.
	MaxObject int

	// PruneEvery is how often one process of the store goes through all keys in the background
	// and deletes what has expired; default 1 h, at least 1 s; negative: never. It reads each
	// object.
	PruneEvery time.Duration

	// ReadOnly is for programs that only list keys and Check. Open proves nothing then, nothing
	// is written, and the time does not move.
	ReadOnly bool

	// Clock is the time of the store; default: a Register in the same KV.
	Clock Clock
}

// withDefaults returns the options with their defaults, or an error that names the wrong field.
func (o *Options) withDefaults(kv KV) (Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	d.Tick = cmp.Or(d.Tick, defaultTick)
	d.MaxWaiters = cmp.Or(d.MaxWaiters, 1000)
	d.MaxObject = cmp.Or(d.MaxObject, 1_500_000)
	d.PruneEvery = cmp.Or(d.PruneEvery, time.Hour)
	switch {
	case d.Tick < time.Millisecond:
		return d, fmt.Errorf("casstore: Options.Tick is %v; it must be at least 1ms", d.Tick)
	case d.MaxWaiters < 0:
		return d, fmt.Errorf("casstore: Options.MaxWaiters is %d; it must not be negative", d.MaxWaiters)
	case d.MaxObject < 0:
		return d, fmt.Errorf("casstore: Options.MaxObject is %d; it must not be negative", d.MaxObject)
	case d.PruneEvery > 0 && d.PruneEvery < time.Second:
		return d, fmt.Errorf("casstore: Options.PruneEvery is %v; it must be at least 1s, or negative", d.PruneEvery)
	}
	if d.Clock == nil || d.ReadOnly {
		r := NewRegister(kv, &RegisterOptions{Tick: d.Tick})
		r.stands, d.Clock = d.ReadOnly, r
	}
	if d.ReadOnly {
		d.PruneEvery = -1
	}
	return d, nil
}
