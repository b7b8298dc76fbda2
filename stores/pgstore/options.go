package pgstore

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// Options are the settings of a Store. Nil and the zero value mean the defaults.
type Options struct {
	// Schema is the schema of the store's tables and functions; default "public". The
	// function Migrate makes it if it does not exist, and Open never does. A lower-case letter or
	// '_', then up to 62 of these and digits.
	Schema string

	// Prefix begins their names, so that several stores share a schema; default "dibs". It is
	// written as Schema, at most 32 bytes.
	Prefix string

	// Migrate makes the tables before the store is used, in a schema that exists. See Migrate.
	Migrate bool

	// ReadOnly is for programs that only list keys and Check, such as dibs ls and dibs doctor. Open
	// then needs no rights but SELECT on the tables, and the store writes nothing by itself.
	ReadOnly bool

	// MaxWaiters bounds the queue of one key; default 100,000. A claim that would make it longer
	// gets store.ErrFull.
	MaxWaiters int

	// MaxRecord bounds the size of a record, in bytes; default and at most 64 MiB. A larger
	// record gets store.ErrTooLarge.
	MaxRecord int

	// Wake is how waiters learn that their turn has come; default WakeAuto.
	Wake Wake

	// PruneEvery is how often a process looks in the background whether it is its turn to delete
	// what has expired; default 10 s, at least 1 ms; negative: never. The processes of a store
	// take turns, once a minute.
	PruneEvery time.Duration

	// pushedTTL is how long the lease of a pushed grant lasts; store.PushedTTL when 0. Only tests
	// set it.
	pushedTTL time.Duration
}

// Wake is how a store learns that a waiter's turn has come.
type Wake uint8

const (
	// WakeAuto listens. It polls if a transaction pooler such as PgBouncer is in between, because
	// no connection can listen through that.
	WakeAuto Wake = iota
	// WakeListen listens on one connection (LISTEN), from the first time that a client waits.
	WakeListen
	// WakePoll asks the server every 2 to 50 ms while clients wait in this process. One query
	// that writes nothing asks for all of them. It is rarer if all are far back in their queues.
	WakePoll
)

// withDefaults returns the options with their defaults, or an error that names the wrong field.
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
	if d.ReadOnly {
		d.PruneEvery = -1
	}
	d.pushedTTL = cmp.Or(d.pushedTTL, store.PushedTTL)
	switch {
	case !storekit.IsIdentifier(d.Schema, 63):
		return d, fmt.Errorf("pgstore: Options.Schema is %q; it must be a lower-case letter or '_', then up to 62 of these and digits", d.Schema)
	case !storekit.IsIdentifier(d.Prefix, 32):
		return d, fmt.Errorf("pgstore: Options.Prefix is %q; it must be a lower-case letter or '_', then up to 31 of these and digits", d.Prefix)
	case d.ReadOnly && d.Migrate:
		return d, errors.New("pgstore: Options.Migrate creates tables, and Options.ReadOnly writes nothing; leave one of them out")
	case d.MaxWaiters < 0 || d.MaxWaiters > 1<<30:
		return d, fmt.Errorf("pgstore: Options.MaxWaiters is %d; it must be 1 to %d", d.MaxWaiters, 1<<30)
	case d.MaxRecord < 0 || d.MaxRecord > 64<<20:
		return d, fmt.Errorf("pgstore: Options.MaxRecord is %d; it must be 1 to %d bytes", d.MaxRecord, 64<<20)
	case d.Wake > WakePoll:
		return d, fmt.Errorf("pgstore: Options.Wake is %d; use WakeAuto, WakeListen or WakePoll", d.Wake)
	case d.PruneEvery > 0 && d.PruneEvery < time.Millisecond:
		return d, fmt.Errorf("pgstore: Options.PruneEvery is %v; it must be at least 1 ms, or negative", d.PruneEvery)
	}
	return d, nil
}
