//go:build unix

package command

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/metrics"
)

// metricsExt ends the names of files that a node exporter reads.
const metricsExt = ".prom"

// successMetric is the metric that a run keeps from the file of the run before.
const successMetric = "dibs_run_success_timestamp_seconds"

// runMeasured runs the command, and writes its metrics if a file is named.
func (p *program) runMeasured(ctx context.Context, h *held) error {
	if h.metrics == "" {
		return p.runUnderKey(ctx, h)
	}
	began := time.Now()
	err := p.runUnderKey(ctx, h)
	code := codeOK
	if err != nil {
		code, _ = p.codeOf(ctx, err)
	}
	m := metrics.NewRun(strings.TrimSuffix(filepath.Base(h.metrics), metricsExt))
	m.Set("dibs_run_exit_code", "The exit code of dibs run.", float64(code))
	m.Set("dibs_run_end_timestamp_seconds", "The time at which dibs run ended.", seconds(time.Now()))
	m.Set("dibs_run_duration_seconds", "How long dibs run took, including the wait for the key.", time.Since(began).Seconds())
	success := lastSuccess(h.metrics)
	if !h.succeeded.IsZero() {
		success = max(success, seconds(h.succeeded))
	}
	m.Set(successMetric, "The time at which a run last succeeded, on any host that this one knows of; 0 is never.", success)
	if unwritten := m.WriteFile(h.metrics); unwritten != nil {
		p.say("the metrics were not written: %v", unwritten) // the exit code stays the command's
	}
	return err
}

// seconds returns the Unix time.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// lastSuccess returns the time of the last success from the file of an earlier run, or 0.
func lastSuccess(file string) float64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, successMetric+"{") {
			last, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			if err == nil && last > 0 {
				return last
			}
		}
	}
	return 0
}
