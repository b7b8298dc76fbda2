package main

import (
	"context"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/stores/memstore"
)

// uncontendedDo measures one goroutine that takes and releases one key.
func uncontendedDo(ctx context.Context, c config) (figure, error) {
	f := figure{unit: "µs", detail: "one goroutine, one key, an empty section"}
	store, err := memstore.New(nil)
	if err != nil {
		return f, err
	}
	defer store.Close()
	client, err := dibs.New(store, nil)
	if err != nil {
		return f, err
	}
	defer client.Close()
	nothing := func(context.Context) error { return nil }
	for round := range c.rounds + 1 {
		n := 0
		start := time.Now()
		for time.Since(start) < c.round {
			for range 1000 {
				if err := client.Do(ctx, "key", nothing); err != nil {
					return f, err
				}
			}
			n += 1000
		}
		if round > 0 { // the first one warms up
			f.value = append(f.value, float64(time.Since(start).Microseconds())/float64(n))
		}
	}
	return f, nil
}

// hold is how long each of the waiters holds the key: long enough that the one
// before has joined the queue again, so that the queue is measured and not the
// scheduler.
const hold = time.Millisecond

// openMemory makes a store in memory.
func openMemory(context.Context) (*candidates, error) {
	b := newCandidates()
	store, err := memstore.New(nil)
	if err == nil {
		err = b.enter(store, store.Close)
	}
	if err != nil {
		b.end()
	}
	return b, err
}
