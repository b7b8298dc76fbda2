package memstore

import (
	"cmp"
	"fmt"
)

// Options bound a Store. The zero value and nil mean the defaults.
type Options struct {
	// MaxKeys is how many keys can be in the store at the same time: held, waited for, done
	// or abandoned. Default: 1,000,000.
	MaxKeys int

	// MaxBytes bounds the data of all records and the progress of all leases together, in
	// bytes. Default: 256 MiB.
	MaxBytes int64

	// MaxWaiters is how many places the queue of one key can have. A waiter at a reserved
	// place needs no other. Default: 100,000.
	MaxWaiters int
}

// withDefaults fills the zero fields in. Its error names the field that is wrong.
func (o *Options) withDefaults() (Options, error) {
	if o == nil {
		o = &Options{}
	}
	d := Options{
		MaxKeys:    cmp.Or(o.MaxKeys, 1_000_000),
		MaxBytes:   cmp.Or(o.MaxBytes, 256<<20),
		MaxWaiters: cmp.Or(o.MaxWaiters, 100_000),
	}
	switch {
	case d.MaxKeys < 0:
		return d, fmt.Errorf("memstore: Options.MaxKeys is %d; it must not be negative", d.MaxKeys)
	case d.MaxBytes < 0:
		return d, fmt.Errorf("memstore: Options.MaxBytes is %d; it must not be negative", d.MaxBytes)
	case d.MaxWaiters < 0:
		return d, fmt.Errorf("memstore: Options.MaxWaiters is %d; it must not be negative", d.MaxWaiters)
	}
	return d, nil
}
