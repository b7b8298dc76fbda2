package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Options say how to check a history. The zero value, and nil, are the defaults.
type Options struct {
	// Slack is how much shorter or longer a store may count a time, because its clock
	// has grains. Fences have none. Default: 5 ms.
	Slack time.Duration

	// Timeout is how long the models may think, over all keys. What is not decided by
	// then is a failure. Default: 60 s.
	Timeout time.Duration

	// Reaction is how long after the end of its lease a section may go on in a process
	// that was not stopped: what its worker needs to notice. Default: 500 ms.
	Reaction time.Duration

	// Settling is how long after a fault connections may still be in disorder: the order
	// of a queue is not checked then. Default: 2 s.
	Settling time.Duration

	// SubscribeDelay is for how long a process that has not asked for a key before may not hear of
	// its turns: others may pass it then. A Redis Cluster is listened to shard by shard.
	// Default: 0, it hears of them from the first.
	SubscribeDelay time.Duration

	// Forgets are the names of the faults after which a store may have lost, or got back
	// an older state of, what it knew before, or after which its clock has stepped: leases
	// and records from before count no more. Fences must rise all the same. A Fault with a
	// Key and the name evict, forget or resolve is one for that key, always.
	Forgets []string

	// Workers are the names of the faults that strike single processes, as Killed and
	// Stopped tell, and neither the store nor the way to it: they cost nobody else anything.
	Workers []string

	// Left is what the run has left behind in the store. Each is a violation.
	Left []string
}

// withDefaults returns the options with their defaults, or an error that names a field.
func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"Slack", r.Slack}, {"Timeout", r.Timeout}, {"Reaction", r.Reaction}, {"Settling", r.Settling}, {"SubscribeDelay", r.SubscribeDelay}} {
		if f.d < 0 {
			return r, fmt.Errorf("check: Options.%s is %v; it must not be negative", f.name, f.d)
		}
	}
	r.Slack = cmp.Or(r.Slack, 5*time.Millisecond)
	r.Timeout = cmp.Or(r.Timeout, time.Minute)
	r.Reaction = cmp.Or(r.Reaction, 500*time.Millisecond)
	r.Settling = cmp.Or(r.Settling, 2*time.Second)
	return r, nil
}

// forced are the names of the faults by which an operator changes one key.
var forced = []string{"evict", "forget", "resolve"}

// forgets reports whether a fault of that name, on one key or not, may lose data.
func (o *Options) forgets(name string, keyed bool) bool {
	return slices.Contains(o.Forgets, name) || keyed && slices.Contains(forced, name)
}
