package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Options say how to check a history. Nil and the zero value are the defaults.
type Options struct {
	// Slack is how much shorter or longer a store may count a time, because its clock is coarse.
	// It does not apply to fences. Default: 5 ms.
	Slack time.Duration

	// Timeout bounds the models, over all keys. A question that is not decided by then is a
	// failure. Default: 60 s.
	Timeout time.Duration

	// Reaction is how long after the end of its lease a section may go on in a process that was
	// not stopped. Default: 500 ms.
	Reaction time.Duration

	// Settling is how long after a fault connections may still be broken. The order of a queue
	// is not checked then. Default: 2 s.
	Settling time.Duration

	// SubscribeDelay is for how long a process that is new to a key may miss its pushed grants,
	// so that others may pass it. A Redis Cluster is subscribed to shard by shard. Default: 0.
	SubscribeDelay time.Duration

	// Forgets are the names of the faults after which the store may have lost data, or after
	// which its clock has stepped. Leases and records from before do not count then. Fences must
	// rise all the same. A Fault with a Key and the name evict, forget or resolve is always one,
	// for that key.
	Forgets []string

	// Stale are the names of the faults during which a store may answer from an older state, of when
	// the fault began, if the answer changes nothing: that a key is held or free. A record that it
	// answers with counts all the same.
	Stale []string

	// Workers are the names of the faults that strike single processes only. Killed and Stopped
	// are the events of them.
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

// forgets reports whether a fault of that name may lose data, of one key or of all.
func (o *Options) forgets(name string, keyed bool) bool {
	return slices.Contains(o.Forgets, name) || keyed && slices.Contains(forced, name)
}
