package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// rates measures all candidates with that many goroutines, which take and release keys of their
// own. It compares ours with the best of the others in each round. Those in beside are measured
// for orientation only.
func rates(open opener, goroutines int, others []string, beside ...string) func(context.Context, config) (figure, error) {
	return func(ctx context.Context, c config) (figure, error) {
		b, err := open(ctx)
		if err != nil {
			return figure{}, err
		}
		defer b.end()
		names := append(append([]string{ours}, others...), beside...)
		got := make(map[string][]float64)
		var ratios []float64
		for round := range c.rounds + 1 {
			for i := range names {
				name := names[(i+round)%len(names)] // the first one alternates
				rate, err := lockRate(ctx, b.lockers[name][0], goroutines, c.round)
				if err != nil {
					return figure{}, fmt.Errorf("%s: %w", name, err)
				}
				got[name] = append(got[name], rate)
			}
			if ctx.Err() != nil {
				return figure{}, errors.New("interrupted")
			}
			if round == 0 { // the first one warms up
				continue
			}
			best := 0.0
			for _, name := range others {
				best = max(best, got[name][round])
			}
			ratios = append(ratios, got[ours][round]/best)
		}
		var all []string
		for _, name := range names {
			all = append(all, fmt.Sprintf("%s %s", name, count(median(got[name][1:]))))
		}
		return figure{value: ratios, detail: strings.Join(all, ", ") + " claim+settle/s"}, nil
	}
}

// tails measures the slowest hundredth of that many goroutines' claims and
// settlements, of keys of their own.
func tails(open opener, goroutines int, beside ...string) func(context.Context, config) (figure, error) {
	return measureAll(open, beside, "ms", func(ctx context.Context, c config, lockers []locker, _ string) (float64, error) {
		return tail(ctx, lockers[0], goroutines, c.round)
	})
}

// contended measures all candidates with that many goroutines on one key.
func contended(open opener, waiters int, beside []string, unit string, of func(contention) float64) func(context.Context, config) (figure, error) {
	return measureAll(open, beside, unit, func(ctx context.Context, c config, lockers []locker, key string) (float64, error) {
		one, err := contend(ctx, lockers, key, waiters, 2*c.round)
		return of(one), err
	})
}

// fairness measures how often the waiter with the most grants of 32 is granted, against the one
// with the fewest.
func fairness(open opener, beside []string) func(context.Context, config) (figure, error) {
	return measureAll(open, beside, "", func(ctx context.Context, c config, lockers []locker, key string) (float64, error) {
		one, err := contend(ctx, lockers, key, 32, 4*c.round)
		return evenness(one), err
	})
}

// measureAll measures ours, and the others for orientation. The key is new each time.
func measureAll(open opener, beside []string, unit string, measure func(ctx context.Context, c config, lockers []locker, key string) (float64, error)) func(context.Context, config) (figure, error) {
	return func(ctx context.Context, c config) (figure, error) {
		b, err := open(ctx)
		if err != nil {
			return figure{}, err
		}
		defer b.end()
		names := append([]string{ours}, beside...)
		got := make(map[string][]float64)
		for round := range c.rounds + 1 {
			for i := range names {
				name := names[(i+round)%len(names)]
				one, err := measure(ctx, c, b.lockers[name], fmt.Sprint(name, round))
				if err != nil {
					return figure{}, fmt.Errorf("%s: %w", name, err)
				}
				if round > 0 { // the first one warms up
					got[name] = append(got[name], one)
				}
			}
			if ctx.Err() != nil {
				return figure{}, errors.New("interrupted")
			}
		}
		var all []string
		for _, name := range beside {
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", name, count(median(got[name])), unit)))
		}
		return figure{value: got[ours], unit: unit, detail: strings.Join(all, ", ")}, nil
	}
}
