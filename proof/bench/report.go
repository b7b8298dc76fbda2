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
