package sqlitestore

import (
	"cmp"
	"fmt"
	"time"
)

// Options are the settings of a Store. Nil and the zero value mean the defaults.
type Options struct {
	// MaxRecord is the largest record, in bytes; 64 MiB when 0, at most 512 MiB.
	// A larger one is answered dibs.ErrFull.
	MaxRecord int

	// MaxWaiters is the longest queue of one key; 100,000 when 0. Who would make
	// it longer is answered dibs.ErrFull.
	MaxWaiters int

	// Shared makes the store a guest in a file of the application's, so that what the
	// application writes and what the store keeps can be committed together (see
	// Transactions): its tables are made there with names that begin with dibs_, and
	// the file's other tables and settings are left as they are, but for its journal
	// mode, which has to be WAL and is made so. All who use the file say the same.
	Shared bool

	// LockWait is how long a call waits, at most, while another process has the
	// file locked; 5 s when 0, at least 1 ms. Then it fails with ErrLocked, or, when it
	// was other Stores that wrote to the file, each element is answered with dibs.ErrBusy,
	// upon which a dibs.Client asks again. A call's context can end it earlier. To open
	// a file that other Stores write to takes six times as long at most.
	LockWait time.Duration

	// PruneEvery is how often what has ended is looked for in the background;
	// 10 s when 0, at least 1 ms, never when negative.
	PruneEvery time.Duration
}

// withDefaults returns the options with every zero field filled in, and an
// error that names the field that is wrong.
func (o *Options) withDefaults() (Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	d.MaxRecord = cmp.Or(d.MaxRecord, 64<<20)
	d.MaxWaiters = cmp.Or(d.MaxWaiters, 100_000)
	d.LockWait = cmp.Or(d.LockWait, 5*time.Second)
	d.PruneEvery = cmp.Or(d.PruneEvery, 10*time.Second)
	switch {
	case d.MaxRecord < 0 || d.MaxRecord > 512<<20:
		return d, fmt.Errorf("sqlitestore: Options.MaxRecord is %d; it must be 1 to %d bytes", d.MaxRecord, 512<<20)
	case d.MaxWaiters < 0:
		return d, fmt.Errorf("sqlitestore: Options.MaxWaiters is %d; it must be at least 1", d.MaxWaiters)
	case d.LockWait < time.Millisecond:
		return d, fmt.Errorf("sqlitestore: Options.LockWait is %v; it must be at least 1 ms", d.LockWait)
	case d.PruneEvery > 0 && d.PruneEvery < time.Millisecond:
		return d, fmt.Errorf("sqlitestore: Options.PruneEvery is %v; it must be at least 1 ms, or negative", d.PruneEvery)
	}
	return d, nil
}
