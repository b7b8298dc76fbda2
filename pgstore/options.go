package pgstore

import (
	"cmp"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
)

// Options are the settings of a Store. Nil and the zero value mean the defaults.
type Options struct {
	// Schema is where the store's tables and functions are; "public" when "". It
	// has to exist, or Migrate has to have the right to make it. A lower-case
	// letter or '_', then up to 62 of these and digits.
	Schema string

	// Prefix begins all their names, so that several stores share a schema;
	// "dibs" when "". Written as Schema, at most 32 bytes.
	Prefix string

	// Migrate makes the tables before the store is used, see Migrate.
	Migrate bool

	// MaxWaiters is the longest queue of one key; 100,000 when 0. Who would make
	// it longer is answered dibs.ErrFull.
	MaxWaiters int

	// MaxRecord is the largest record, in bytes; 64 MiB when 0, at most 256 MiB. A
	// larger one is answered dibs.ErrFull.
	MaxRecord int

	// Wake says how those who wait hear that their turn has come.
	Wake Wake

	// PruneEvery is how often what has ended is looked for in the background;
	// 10 s when 0, at least 1 ms, never when negative. Of the processes that share
	// a store one does it at a time.
	PruneEvery time.Duration

	// turn is how long a lease lasts that is told; dibs.PushedTTL when 0. Only tests set it.
	turn time.Duration
}

// Wake is how a store learns that somebody's turn has come.
type Wake uint8

const (
	// WakeAuto listens, and polls where a transaction pooler such as PgBouncer is
	// in between, through which nobody can listen.
	WakeAuto Wake = iota
	// WakeListen listens on one connection (LISTEN), once somebody has waited.
	WakeListen
	// WakePoll asks the server every 2 to 50 ms while somebody waits, for all who
	// do in one question that writes nothing.
	WakePoll
)

// withDefaults returns the options with every zero field filled in, and an
// error that names the field that is wrong.
func (o *Options) withDefaults() (Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	d.Schema = cmp.Or(d.Schema, "public")
	d.Prefix = cmp.Or(d.Prefix, "dibs")
	d.MaxWaiters = cmp.Or(d.MaxWaiters, 100_000)
	d.MaxRecord = cmp.Or(d.MaxRecord, 64<<20)
	d.PruneEvery = cmp.Or(d.PruneEvery, 10*time.Second)
	d.turn = cmp.Or(d.turn, dibs.PushedTTL)
	switch {
	case !validName(d.Schema, 63):
		return d, fmt.Errorf("pgstore: Options.Schema is %q; it must be a lower-case letter or '_', then up to 62 of these and digits", d.Schema)
	case !validName(d.Prefix, 32):
		return d, fmt.Errorf("pgstore: Options.Prefix is %q; it must be a lower-case letter or '_', then up to 31 of these and digits", d.Prefix)
	case d.MaxWaiters < 0 || d.MaxWaiters > 1<<30:
		return d, fmt.Errorf("pgstore: Options.MaxWaiters is %d; it must be 1 to %d", d.MaxWaiters, 1<<30)
	case d.MaxRecord < 0 || d.MaxRecord > 256<<20:
		return d, fmt.Errorf("pgstore: Options.MaxRecord is %d; it must be 1 to %d bytes", d.MaxRecord, 256<<20)
	case d.Wake > WakePoll:
		return d, fmt.Errorf("pgstore: Options.Wake is %d; there is no such way", d.Wake)
	case d.PruneEvery > 0 && d.PruneEvery < time.Millisecond:
		return d, fmt.Errorf("pgstore: Options.PruneEvery is %v; it must be at least 1 ms, or negative", d.PruneEvery)
	}
	return d, nil
}
