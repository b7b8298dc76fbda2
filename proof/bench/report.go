package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

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
