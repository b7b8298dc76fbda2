package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// figure is the result of a comparison.
type figure struct {
	value  []float64 // a value or ratio a round
	unit   string    // of value; "" for a ratio
	detail string    // absolute figures, for orientation
}

// failure is the panic of a comparison that cannot continue.
type failure struct{ error }

// must ends the comparison at an error. Only the goroutine that runs the comparison may call it.
func must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// get is must for a function that returns a value.
func get[T any](v T, err error) T {
	must(err)
	return v
}

// measure runs the comparison, and returns the error that ended it.
func (c *comparison) measure(ctx context.Context, o config) (f figure, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("%s: %w", c.name, p.error)
		default:
			panic(p)
		}
	}()
	return c.run(ctx, o), nil
}

// side is what is measured in one round of a comparison.
type side func(ctx context.Context, round int) float64

// turns measures the sides in turns, round after round, and returns what each gave. The first round
// warms up, and the first side alternates.
func (c config) turns(ctx context.Context, sides ...side) [][]float64 {
	got := make([][]float64, len(sides))
	for round := range c.rounds + 1 {
		for i := range sides {
			n := (i + round) % len(sides)
			if v := sides[n](ctx, round); round > 0 {
				got[n] = append(got[n], v)
			}
		}
		if ctx.Err() != nil {
			must(errors.New("interrupted"))
		}
	}
	return got
}

// interleave compares ours with the floor, with the medians of both as the detail.
func interleave(ctx context.Context, c config, unit string, ours, floor side) figure {
	got := c.turns(ctx, ours, floor)
	f := figure{detail: fmt.Sprintf("%s against %s %s", count(median(got[0])), count(median(got[1])), unit)}
	for i, v := range got[0] {
		f.value = append(f.value, v/got[1][i])
	}
	return f
}

// measureAll measures ours, and the others for orientation. The key is new each time.
func measureAll(open opener, beside []string, unit string, measure func(ctx context.Context, c config, name string, lockers []locker, key string) float64) func(context.Context, config) figure {
	return with(open, func(ctx context.Context, c config, b *candidates) figure {
		var sides []side
		for _, name := range append([]string{ours}, beside...) {
			sides = append(sides, func(ctx context.Context, round int) float64 {
				return measure(ctx, c, name, b.lockers[name], fmt.Sprint(name, round))
			})
		}
		got := c.turns(ctx, sides...)
		var all []string
		for i, name := range beside {
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", name, count(median(got[i+1])), unit)))
		}
		return figure{value: got[0], unit: unit, detail: strings.Join(all, ", ")}
	})
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// quantile returns, in milliseconds, the time below which that share of the times is.
func quantile(took []time.Duration, share float64) float64 {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return float64(took[int(float64(len(took))*share)].Microseconds()) / 1000
}

// count prints a number with as many digits as mean something.
func count(v float64) string {
	switch {
	case v >= 10000:
		s := fmt.Sprintf("%.0f", v)
		var parts []string
		for len(s) > 3 {
			parts = append([]string{s[len(s)-3:]}, parts...)
			s = s[:len(s)-3]
		}
		return strings.Join(append([]string{s}, parts...), " ")
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
