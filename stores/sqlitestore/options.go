package sqlitestore

import (
	"cmp"
	"fmt"
	"time"
)

// Options configures a Store. nil and the zero value mean the defaults.
type Options struct {
	// MaxRecord bounds a record, in bytes. A larger one gets store.ErrTooLarge. 0: 64 MiB;
	// at most 512 MiB.
	MaxRecord int

	// MaxWaiters bounds the places in the queue of one key. More claims get store.ErrFull.
	// 0: 100,000.
	MaxWaiters int

	// Shared puts the store's tables into a file of the application, so that both can
	// commit together (see Transactions). Their names begin with dibs_. Other tables and
	// settings stay as they are, except the journal mode, which becomes WAL. All programs
	// that use the file must set the same. Default: false.
	Shared bool

	// LockWait is the longest wait of a call while another process has the file locked.
	// 0: 5 s; at least 1 ms. Then the call fails with ErrLocked. If other Stores were
	// writing, each element gets store.ErrBusy instead, and a dibs.Client asks again. A
	// call's context can end the wait earlier. Open waits at most six times as long.
	LockWait time.Duration

	// PruneEvery is the pause between background prunes. 0: 10 s; at least 1 ms;
	// negative: never.
	PruneEvery time.Duration
}

// withDefaults fills in the zero fields. The error names the wrong field.
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

// patience is how long a Store waits for its turn before it looks whether the turn stalls.
func (o *Options) patience() time.Duration { return min(stalled, o.LockWait/4) }
