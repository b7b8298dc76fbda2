package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
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

// fairness measures how evenly 32 waiters on one key are served.
func fairness(ctx context.Context, c config) (figure, error) {
	const waiters = 32
	var f figure
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
	total := 0
	span := 4 * c.round // so that one grant more or less weighs little
	for range c.rounds {
		grants := make([]int, waiters)
		over, cancel := context.WithTimeout(ctx, span)
		var wg sync.WaitGroup
		errs := make(chan error, waiters)
		for i := range waiters {
			wg.Go(func() {
				for {
					err := client.Do(over, "key", func(context.Context) error { grants[i]++; time.Sleep(hold); return nil })
					if over.Err() != nil {
						return
					}
					if err != nil {
						errs <- err
						return
					}
				}
			})
		}
		wg.Wait()
		cancel()
		close(errs)
		if err := <-errs; err != nil {
			return f, err
		}
		fewest, most := slices.Min(grants), slices.Max(grants)
		if fewest == 0 {
			return f, errors.New("a waiter starved")
		}
		f.value = append(f.value, float64(most)/float64(fewest))
		for _, n := range grants {
			total += n
		}
	}
	f.detail = fmt.Sprintf("each holds it for %v; %s grants/s", hold, count(float64(total)/(span.Seconds()*float64(c.rounds))))
	return f, nil
}
