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
	w io.Writer
}

func newReport(w io.Writer, c config) *report {
	fmt.Fprintf(w, "%s on %s/%s, %d processors (%s), %s. Median of %d interleaved rounds of %v a side, with the smallest and the largest. %s\n\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), processor(), time.Now().Format(time.DateOnly), c.rounds, c.round, disk())
	fmt.Fprintln(w, "| what | goal | median | min … max | absolute, for orientation |")
	fmt.Fprintln(w, "|---|---|---|---|---|")
	return &report{w: w}
}

func (r *report) add(c comparison, f figure) {
	fmt.Fprintf(r.w, "| %s | %s | **%s** | %s … %s | %s |\n", c.name, c.goal, strings.TrimSpace(count(median(f.value))+" "+f.unit),
		count(slices.Min(f.value)), count(slices.Max(f.value)), f.detail)
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
