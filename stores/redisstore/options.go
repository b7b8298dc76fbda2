package redisstore

import (
	"cmp"
	"fmt"
	"regexp"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Options configures a Store. nil and the zero value mean the defaults.
type Options struct {
	// Prefix begins the name of every key on the server, so that several applications can
	// share a server: 1 to 64 letters, digits, '.', '_', '-' and ':'. Default: "dibs".
	Prefix string

	// ReadOnly is for programs that only list keys and Check, such as dibs ls and dibs doctor.
	// Open then needs no rights but those to read (+@read +@connection).
	ReadOnly bool

	// MaxWaiters bounds the places in the queue of one key. More claims get store.ErrFull.
	// Default: 100,000.
	MaxWaiters int

	// MaxRecord bounds a record, in bytes. A larger one gets store.ErrTooLarge. Default:
	// 64 MiB.
	MaxRecord int

	// Replicas is how many replicas must acknowledge a grant, a renewal, a record, and
	// an answer from a record (WAIT). A grant without enough acknowledgements is undone
	// and refused with ErrNotReplicated. The others get ErrNotReplicated and may be sent
	// again. So a holder that is cut off together with its master loses the lease before
	// a promoted replica can grant it again. The loss of a grant in a failover becomes
	// unlikely, not impossible. It costs one more connection, and a round trip to the
	// replicas. Default: 0.
	Replicas int
	// ReplicaWait is how long the replicas may take. Default: 1 s.
	ReplicaWait time.Duration

	// pushedTTL is the TTL of pushed grants; store.PushedTTL when 0. Only tests set it.
	pushedTTL time.Duration
	// patience replaces the limits of Open and of calls on a single server when it is not 0.
	// Only tests set it, so that no call fails because the machine pauses.
	patience time.Duration
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
	r.pushedTTL = cmp.Or(r.pushedTTL, store.PushedTTL)
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
