package redisstore

import (
	"cmp"
	"fmt"
	"regexp"
	"time"

	"github.com/dibs-go/dibs"
)

// Options are the settings of a Store. The zero value, and nil, mean defaults.
type Options struct {
	// Prefix begins the name of every key on the server, so that two
	// applications, or two databases of dibs, share one: 1 to 64 letters,
	// digits, '.', '_', '-' and ':'. Default: "dibs".
	Prefix string

	// MaxWaiters is how many places the queue of one key may have; beyond that
	// a claim is answered dibs.ErrFull. Default: 100,000.
	MaxWaiters int

	// MaxRecord is the largest record, in bytes; beyond that a settlement is
	// answered dibs.ErrFull. Default: 64 MiB.
	MaxRecord int

	// Replicas is how many replicas have to acknowledge a grant, a renewal and a
	// record before it counts (WAIT). A grant that they do not acknowledge is
	// undone and refused with ErrNotReplicated; a renewal or a record is answered
	// ErrNotReplicated and may be sent again. So a holder that is cut off with its
	// master loses the lease before a replica that takes over can give it away. It
	// makes the loss of a grant at a failover unlikely, not impossible, and costs a
	// connection of its own and a round trip to the replicas. Default: 0, none.
	Replicas int
	// ReplicaWait is how long they have for it. Default: 1 s.
	ReplicaWait time.Duration

	// turn is how long a lease lasts that is granted in the waiter's absence; dibs.PushedTTL
	// when 0. Only tests set it.
	turn time.Duration
}

func (o *Options) withDefaults() (Options, error) {
	if o == nil {
		o = &Options{}
	}
	r := *o
	r.Prefix = cmp.Or(r.Prefix, "dibs")
	r.MaxWaiters = cmp.Or(r.MaxWaiters, 100_000)
	r.MaxRecord = cmp.Or(r.MaxRecord, 64<<20)
	r.ReplicaWait = cmp.Or(r.ReplicaWait, time.Second)
	r.turn = cmp.Or(r.turn, dibs.PushedTTL)
	switch {
	case !validPrefix(r.Prefix):
		return r, fmt.Errorf("redisstore: Options.Prefix is %q; it must be 1 to 64 letters, digits, '.', '_', '-' and ':'", r.Prefix)
	case r.MaxWaiters < 0:
		return r, fmt.Errorf("redisstore: Options.MaxWaiters is %d; it must not be negative", r.MaxWaiters)
	case r.MaxRecord < 0 || r.MaxRecord > 256<<20:
		return r, fmt.Errorf("redisstore: Options.MaxRecord is %d; it must be 1 to 268435456", r.MaxRecord)
	case r.Replicas < 0:
		return r, fmt.Errorf("redisstore: Options.Replicas is %d; it must not be negative", r.Replicas)
	case r.ReplicaWait < time.Millisecond:
		return r, fmt.Errorf("redisstore: Options.ReplicaWait is %v; it must be at least %v", r.ReplicaWait, time.Millisecond)
	}
	return r, nil
}

var prefixForm = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

func validPrefix(s string) bool { return prefixForm.MatchString(s) }
