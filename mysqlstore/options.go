package mysqlstore

import (
	"cmp"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
)

// Options are the settings of a Store. Nil and the zero value mean the defaults.
type Options struct {
	// Prefix begins the names of the store's tables, so that several stores share a
	// database; "dibs" when "". A lower-case letter or '_', then up to 31 of these and
	// digits.
	Prefix string

	// Migrate brings the tables up to date before the store is used, see Migrate.
	Migrate bool

	// MaxWaiters is the longest queue of one key; 100,000 when 0. Who would make
	// it longer is answered dibs.ErrFull.
	MaxWaiters int

	// MaxRecord is the largest record, in bytes; 64 MiB when 0, at most 256 MiB. A
	// larger one is answered dibs.ErrFull, as is one that the server's
	// max_allowed_packet has no room for.
	MaxRecord int

	// PruneEvery is how often this process asks whether it is its turn to look for what
	// has ended; 10 s when 0, at least 1 ms, never when negative. One of those that share
	// a store does so once a minute.
	PruneEvery time.Duration

	// turn is how long a lease lasts that is told; dibs.PushedTTL when 0. Only tests set it.
	turn time.Duration
}

// withDefaults returns the options with every zero field filled in, and an
// error that names the field that is wrong.
func (o *Options) withDefaults() (Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	d.Prefix = cmp.Or(d.Prefix, "dibs")
	d.MaxWaiters = cmp.Or(d.MaxWaiters, 100_000)
	d.MaxRecord = cmp.Or(d.MaxRecord, 64<<20)
	d.PruneEvery = cmp.Or(d.PruneEvery, 10*time.Second)
	d.turn = cmp.Or(d.turn, dibs.PushedTTL)
	switch {
	case !validName(d.Prefix, 32):
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
