package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
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

// report prints the table as Markdown while it grows.
type report struct {
	w    io.Writer
	head string            // how it is measured
	rows map[string]string // by the comparison's name
}

func newReport(w io.Writer, c config) *report {
	head := fmt.Sprintf("%s on %s/%s, %d processors (%s), %s%s. Median of %d interleaved rounds of %v a side, with the smallest and the largest. %s",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), processor(), time.Now().Format(time.DateOnly), busy(), c.rounds, c.round, disk())
	fmt.Fprint(w, head, "\n\n", tableHead)
	return &report{w: w, head: head, rows: map[string]string{}}
}

func (r *report) add(c comparison, f figure) {
	row := fmt.Sprintf("| %s | %s | **%s** | %s … %s | %s |", c.name, c.goal, strings.TrimSpace(count(median(f.value))+" "+f.unit),
		count(slices.Min(f.value)), count(slices.Max(f.value)), f.detail)
	r.rows[c.name] = row
	fmt.Fprintln(r.w, row)
}

func (r *report) end() error {
	_, err := fmt.Fprintln(r.w)
	return err
}

// processor names the machine's processor where the system tells.
func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// busy says, where the system tells, how busy the machine was in the fifteen minutes before the run.
func busy() string {
	text, err := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(text)); err == nil && len(f) > 2 {
		return ", at a load of " + f[2]
	}
	return ""
}

// tableHead begins each table of figures.
const tableHead = "| what | goal | median | min … max | absolute, for orientation |\n|---|---|---|---|---|\n"

// write puts what was measured in the place of the tables of the page, and says above each how it was
// measured. A table of which one comparison was not measured stays, because it is the table of one run.
func (r *report) write(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	parts := strings.Split(string(text), tableHead)
	for i := 1; i < len(parts); i++ {
		table, rest, _ := strings.Cut(parts[i], "\n\n")
		var rows []string
		for row := range strings.SplitSeq(table, "\n") {
			if measured := r.rows[nameOf(row)]; measured != "" {
				rows = append(rows, measured)
			}
		}
		if len(rows) <= strings.Count(table, "\n") {
			continue
		}
		above := strings.TrimSuffix(parts[i-1], "\n\n")
		parts[i-1] = above[:strings.LastIndex(above, "\n\n")+2] + r.head + "\n\n"
		parts[i] = strings.Join(rows, "\n") + "\n\n" + rest
	}
	return os.WriteFile(page, []byte(strings.Join(parts, tableHead)), 0o644)
}

// nameOf returns the name of the comparison whose row it is.
func nameOf(row string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
	return name
}

// least returns how long a number of comparisons takes at least: most have two sides, and a round
// to warm up.
func (c config) least(comparisons int) time.Duration {
	return time.Duration(comparisons) * 2 * time.Duration(c.rounds+1) * c.round
}

// announcement says, before the first comparison, how long all of them take.
func (c config) announcement(comparisons int) string {
	return fmt.Sprintf("%d comparisons of %d rounds take at least %v, and the servers' starts\n",
		comparisons, c.rounds, c.least(comparisons).Round(time.Second))
}

// pace is the line of a terminal while a comparison runs: which one it is, and how long the rest
// takes if it is as slow as those before.
func pace(done, all int, name string, took time.Duration) string {
	text := fmt.Sprintf("%d of %d", done+1, all)
	if done > 0 {
		left := took / time.Duration(done) * time.Duration(all-done)
		text += fmt.Sprintf(", about %v left", left.Round(time.Minute))
	}
	return text + ": " + name
}

// disk says what an fsync of a page costs where the servers of this program keep their data.
func disk() string {
	cost, err := syncCost(os.TempDir())
	if err != nil {
		return fmt.Sprintf("An fsync fails: %v.", err)
	}
	return fmt.Sprintf("An fsync of a page takes %.2f ms.", cost)
}

// syncCost returns the median time, in milliseconds, of writing a page of a file that has its size
// already and waiting for it, which is what a database does with its log.
func syncCost(dir string) (float64, error) {
	const page, pages = 8192, 256
	f, err := os.CreateTemp(dir, "dibs-bench-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(make([]byte, page*pages)); err != nil {
		return 0, err
	}
	err = f.Sync()
	took := make([]time.Duration, pages)
	for i := range took {
		if _, wrong := f.WriteAt(make([]byte, page), int64(i)*page); err == nil {
			err = wrong
		}
		start := time.Now()
		if wrong := f.Sync(); err == nil {
			err = wrong
		}
		took[i] = time.Since(start)
	}
	return quantile(took, 0.5), err
}
