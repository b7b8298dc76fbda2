//go:build unix

package command

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/metrics"
)

// metricsExt ends the names of files that a node exporter reads.
const metricsExt = ".prom"

// runMeasured runs the command, and writes its metrics if a file is named.
func (p *program) runMeasured(ctx context.Context, h *held) error {
	if h.metrics == "" {
		return p.runUnderKey(ctx, h, nil)
	}
	m, err := metrics.New(strings.TrimSuffix(filepath.Base(h.metrics), metricsExt))
	if err != nil {
		return err
	}
	began := time.Now()
	err = p.runUnderKey(ctx, h, m)
	code := codeOK
	if err != nil {
		code, _ = p.codeOf(ctx, err)
	}
	m.Set("dibs_run_exit_code", "The exit code of dibs run.", float64(code))
	m.Set("dibs_run_end_timestamp_seconds", "The time at which dibs run ended.", float64(time.Now().UnixMilli())/1000)
	m.Set("dibs_run_duration_seconds", "How long dibs run took, including the wait for the key.", time.Since(began).Seconds())
	if unwritten := m.WriteFile(h.metrics); unwritten != nil {
		p.say("the metrics were not written: %v", unwritten) // the exit code stays the command's
	}
	return err
}
