package command

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/metrics"
)

// metricsExt is what the names of the files end in that a node's exporter reads.
const metricsExt = ".prom"

// measure is runUnder that leaves its metrics in a file, if it is to.
func (p *program) measure(ctx context.Context, h *hold) error {
	if h.metrics == "" {
		return p.runUnder(ctx, h, nil)
	}
	m, err := metrics.New(strings.TrimSuffix(filepath.Base(h.metrics), metricsExt))
	if err != nil {
		return err
	}
	began := time.Now()
	err = p.runUnder(ctx, h, m)
	code := codeOK
	if err != nil {
		code, _ = p.codeOf(ctx, err)
	}
	m.Set("dibs_run_exit_code", "What dibs run ended with.", float64(code))
	m.Set("dibs_run_end_timestamp_seconds", "When dibs run ended.", float64(time.Now().UnixMilli())/1000)
	m.Set("dibs_run_duration_seconds", "How long dibs run took, waiting included.", time.Since(began).Seconds())
	if unwritten := m.WriteFile(h.metrics); unwritten != nil {
		p.say("the metrics were not written: %v", unwritten) // the command's outcome stays what it is
	}
	return err
}
