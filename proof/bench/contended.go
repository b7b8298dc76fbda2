package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// contention is what happened while goroutines wanted one key.
type contention struct {
	grants []int           // by goroutine
	gaps   []time.Duration // from a release to the next section
}

// contend lets goroutines take one key in turns for d, each holding it for a while. The
// goroutines are spread over the processes. The key must be new, because a peer may leave a key
// held that was waited for in vain.
func contend(ctx context.Context, processes []locker, key string, waiters int, d time.Duration) (contention, error) {
	c := contention{grants: make([]int, waiters)}
	over, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var released time.Time // under the lock that is measured
	var wg sync.WaitGroup
	errs := make(chan error, waiters)
	for i := range waiters {
		wg.Go(func() {
			l := processes[i%len(processes)]
			for over.Err() == nil {
				err := l.lock(over, key, func() {
					if !released.IsZero() {
						c.gaps = append(c.gaps, time.Since(released))
					}
					c.grants[i]++
					time.Sleep(hold)
					released = time.Now()
				})
				if err != nil && over.Err() == nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return c, <-errs
}

// total returns how often the key was granted.
func (c *contention) total() (n int) {
	for _, g := range c.grants {
		n += g
	}
	return n
}

// gap returns the median hand-over in milliseconds.
func gap(c contention) float64 {
	if len(c.gaps) == 0 {
		return 0
	}
	slices.Sort(c.gaps)
	return float64(c.gaps[len(c.gaps)/2].Microseconds()) / 1000
}

// evenness returns how often the goroutine with the most grants was granted, against the one
// with the fewest.
func evenness(c contention) float64 {
	return float64(slices.Max(c.grants)) / float64(max(slices.Min(c.grants), 1))
}

// redisRoundTrips counts, at the server, the scripts that a contended cycle takes.
func redisRoundTrips(ctx context.Context, c config) (figure, error) {
	b, err := newRedisBench(nil)
	if err != nil {
		return figure{}, err
	}
	defer b.end()
	var f figure
	for range min(c.rounds, 5) {
		before, err := b.scripts()
		if err != nil {
			return f, err
		}
		one, err := contend(ctx, b.lockers[ours], "contended", 32, 2*c.round)
		if err != nil {
			return f, err
		}
		after, err := b.scripts()
		if err != nil {
			return f, err
		}
		f.value = append(f.value, float64(after-before)/float64(one.total()))
	}
	f.detail = "scripts run by the server, 32 goroutines on one key"
	return f, nil
}

// scripts returns how many scripts the server has run.
func (b *redisBench) scripts() (int, error) {
	answer, err := b.server.Do("INFO", "commandstats")
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(answer.(string)) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			digits, _, _ := strings.Cut(rest, ",")
			return strconv.Atoi(digits)
		}
	}
	return n, nil
}

// redisReplay counts the scripts of a first request and of a replay.
func redisReplay(ctx context.Context, c config) (figure, error) {
	b, err := newRedisBench(nil)
	if err != nil {
		return figure{}, err
	}
	defer b.end()
	var f figure
	client := b.lockers[ours][0].(dibsLocker).client
	var firsts []string
	for round := range c.rounds {
		for again := range 2 {
			before, err := b.scripts()
			if err != nil {
				return f, err
			}
			if _, err := dibs.Once(ctx, client, "request "+strconv.Itoa(round), nil,
				func(context.Context) (string, error) { return "answer", nil }); err != nil {
				return f, err
			}
			after, err := b.scripts()
			if err != nil {
				return f, err
			}
			if again == 1 {
				f.value = append(f.value, float64(after-before))
			} else {
				firsts = append(firsts, strconv.Itoa(after-before))
			}
		}
	}
	f.detail = fmt.Sprintf("a first request %s", slices.Max(firsts))
	return f, nil
}

// tail returns the 99th percentile of a claim and settlement, in milliseconds.
func tail(ctx context.Context, l locker, goroutines int, d time.Duration) (float64, error) {
	took := make([][]time.Duration, goroutines)
	var wg sync.WaitGroup
	errs := make(chan error, goroutines)
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			for i := 0; time.Since(start) < d; i++ {
				began := time.Now()
				if err := l.lock(ctx, fmt.Sprintf("goroutine %d, cycle %d", g, i), func() {}); err != nil {
					errs <- err
					return
				}
				took[g] = append(took[g], time.Since(began))
			}
		})
	}
	wg.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return 0, err
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	return float64(all[len(all)*99/100].Microseconds()) / 1000, nil
}
