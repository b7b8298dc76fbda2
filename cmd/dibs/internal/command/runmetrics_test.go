//go:build unix

package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMetricsFile: a run writes its outcome for a node exporter, however it ends.
func TestMetricsFile(t *testing.T) {
	b, dir := newBench(t), t.TempDir()
	for _, test := range []struct {
		name string
		code int
		args []string
		want []string
	}{
		{"report", 0, []string{"k", "--", "true"}, []string{
			`dibs_run_exit_code{run="report"} 0`,
			`dibs_claim_duration_seconds_count{dibs_outcome="acquired",dibs_queued="false",run="report"} 1`,
			`dibs_lease_duration_seconds_count{dibs_outcome="released",run="report"} 1`,
		}},
		{"failing", 3, []string{"k", "--", "sh", "-c", "exit 3"}, []string{`dibs_run_exit_code{run="failing"} 3`}},
		{"missing", 127, []string{"k", "--", "no-such-command"}, []string{`dibs_run_exit_code{run="missing"} 127`}},
	} {
		file := filepath.Join(dir, test.name+".prom")
		code, _, stderr := b.run(t, append([]string{"run", "--metrics-file", file}, test.args...)...)
		if code != test.code {
			t.Errorf("%s ended with %d, want %d: %s", test.name, code, test.code, stderr)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range append(test.want, `dibs_run_end_timestamp_seconds{run="`+test.name+`"} `) {
			if !strings.Contains(string(text), "\n"+line) {
				t.Errorf("%s: no line %q in\n%s", test.name, line, text)
			}
		}
	}
	for why, name := range map[string]string{"no exporter reads it": "report", "it names no run": ".prom", "its name is no label": "\xff.prom"} {
		if code, _, stderr := b.run(t, "run", "--metrics-file", filepath.Join(dir, name), "k", "--", "true"); code != 64 {
			t.Errorf("%q was taken for a file, though %s: %d %s", name, why, code, stderr)
		}
	}
}
