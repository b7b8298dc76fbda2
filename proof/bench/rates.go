package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// rates measures everybody at that many goroutines, which take and release keys of
// their own, and compares ours with the best of the others in each round. Those
// beside are measured for orientation only.
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
				name := names[(i+round)%len(names)] // who goes first alternates
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
	return everybody(open, beside, "ms", func(ctx context.Context, c config, lockers []locker, _ string) (float64, error) {
		return tail(ctx, lockers[0], goroutines, c.round)
	})
}

// contended measures everybody with that many goroutines on one key, and tells what
// figure says. Everybody has a crowd of its own, one after the other.
func contended(open opener, waiters int, beside []string, unit string, of func(contention) float64) func(context.Context, config) (figure, error) {
	return everybody(open, beside, unit, func(ctx context.Context, c config, lockers []locker, key string) (float64, error) {
		one, err := crowd(ctx, lockers, key, waiters, 2*c.round)
		return of(one), err
	})
}

// evenly measures how often the luckiest of 32 waiters on one key is granted against
// the unluckiest: for long enough that one grant more or less weighs little.
func evenly(open opener, beside []string) func(context.Context, config) (figure, error) {
	return everybody(open, beside, "", func(ctx context.Context, c config, lockers []locker, key string) (float64, error) {
		one, err := crowd(ctx, lockers, key, 32, 4*c.round)
		return evenness(one), err
	})
}

// everybody measures ours, and the others for orientation. The key is new each time.
func everybody(open opener, beside []string, unit string, measure func(ctx context.Context, c config, lockers []locker, key string) (float64, error)) func(context.Context, config) (figure, error) {
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
