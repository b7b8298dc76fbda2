package mysqlstore

import (
	"cmp"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// Options are the settings of a Store. Nil and the zero value mean the defaults.
type Options struct {
	// Prefix begins the names of the store's tables, so that several stores share a database;
	// default "dibs". A lower-case letter or '_', then up to 31 of these and digits.
	Prefix string

	// Migrate brings the tables up to date before the store is used. See Migrate.
	Migrate bool

	// MaxWaiters bounds the queue of one key; default 100,000. A claim that would make it longer
	// gets store.ErrFull.
	MaxWaiters int

	// MaxRecord bounds the size of a record, in bytes; default 64 MiB, at most 256 MiB. A larger
	// record gets store.ErrTooLarge, and so does a record that does not fit into the server's
	// max_allowed_packet.
	MaxRecord int

	// PruneEvery is how often a process looks in the background whether it is its turn to delete
	// what has expired; default 10 s, at least 1 ms; negative: never. The processes of a store
	// take turns, once a minute.
	PruneEvery time.Duration

	// ReadOnly is for a program that only lists keys and checks the store. Then SELECT on the
	// tables is enough, and nothing is pruned.
	ReadOnly bool

	// pushedTTL is how long the lease of a pushed grant lasts; store.PushedTTL when 0. Only tests
	// set it.
	pushedTTL time.Duration
}

// withDefaults returns the options with their defaults, or an error that names the wrong field.
func (o *Options) withDefaults() (Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	d.Prefix = cmp.Or(d.Prefix, "dibs")
	d.MaxWaiters = cmp.Or(d.MaxWaiters, 100_000)
	d.MaxRecord = cmp.Or(d.MaxRecord, 64<<20)
	d.PruneEvery = cmp.Or(d.PruneEvery, 10*time.Second)
	if d.ReadOnly {
		d.PruneEvery = -1
	}
	d.pushedTTL = cmp.Or(d.pushedTTL, store.PushedTTL)
	switch {
	case !storekit.IsIdentifier(d.Prefix, 32):
		return d, fmt.Errorf("mysqlstore: Options.Prefix is %q; it must be a lower-case letter or '_', then up to 31 of these and digits", d.Prefix)
	case d.MaxWaiters < 0 || d.MaxWaiters > 1<<30:
		return d, fmt.Errorf("mysqlstore: Options.MaxWaiters is %d; it must be 1 to %d", d.MaxWaiters, 1<<30)
	case d.MaxRecord < 0 || d.MaxRecord > 256<<20:
		return d, fmt.Errorf("mysqlstore: Options.MaxRecord is %d; it must be 1 to %d bytes", d.MaxRecord, 256<<20)
	case d.PruneEvery > 0 && d.PruneEvery < time.Millisecond:
		return d, fmt.Errorf("mysqlstore: Options.PruneEvery is %v; it must be at least 1 ms, or negative", d.PruneEvery)
	}
	return d, nil
}
