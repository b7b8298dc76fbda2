package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// redisRates measures everybody at that many goroutines, and compares ours with
// what versus says: the floor, or the best peer of the round.
func redisRates(goroutines int, versus string) func(context.Context, config) (figure, error) {
	return func(ctx context.Context, c config) (figure, error) {
		b, err := newRedisBench()
		if err != nil {
			return figure{}, err
		}
		defer b.end()
		names := append([]string{ours, floorName}, redisPeers...)
		rates := make(map[string][]float64)
		var ratios []float64
		for round := range c.rounds + 1 {
			for i := range names {
				name := names[(i+round)%len(names)] // who goes first alternates
				rate, err := lockRate(ctx, b.lockers[name], goroutines, c.round)
				if err != nil {
					return figure{}, fmt.Errorf("%s: %w", name, err)
				}
				rates[name] = append(rates[name], rate)
			}
			if ctx.Err() != nil {
				return figure{}, errors.New("interrupted")
			}
			other := rates[floorName][round]
			if versus != floorName {
				other = 0
				for _, peer := range redisPeers {
					other = max(other, rates[peer][round])
				}
			}
			if round == 0 { // the first one warms up
				continue
			}
			ratios = append(ratios, rates[ours][round]/other)
		}
		var all []string
		for _, name := range names {
			all = append(all, fmt.Sprintf("%s %s", name, count(median(rates[name][1:]))))
		}
		return figure{value: ratios, detail: strings.Join(all, ", ") + " claim+settle/s"}, nil
	}
}
