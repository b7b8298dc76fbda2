//go:build unix

package command_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
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
			`dibs_run_duration_seconds{run="report"} `,
			`dibs_run_success_timestamp_seconds{run="report"} 1`,
		}},
		{"failing", 3, []string{"k", "--", "sh", "-c", "exit 3"}, []string{`dibs_run_exit_code{run="failing"} 3`, `dibs_run_success_timestamp_seconds{run="failing"} 0`}},
		{"missing", 127, []string{"k", "--", "no-such-command"}, []string{`dibs_run_exit_code{run="missing"} 127`}},
	} {
		file := filepath.Join(dir, test.name+".prom")
		code, _, stderr := b.run(t, append([]string{"run", "--metrics-file", file}, test.args...)...)
		if code != test.code {
			t.Errorf("%s exited with %d, want %d: %s", test.name, code, test.code, stderr)
		}
		text := testkit.ReadFile(t, file)
		for _, line := range append(test.want, `dibs_run_end_timestamp_seconds{run="`+test.name+`"} `) {
			if !strings.Contains(string(text), "\n"+line) {
				t.Errorf("%s: no line %q in\n%s", test.name, line, text)
			}
		}
	}
	text := testkit.ReadFile(t, filepath.Join(dir, "report.prom"))
	for _, name := range regexp.MustCompile(`dibs_run_[a-z_]+`).FindAllString(readDeploy(t, "alerts.yaml")+readDeploy(t, "dashboard.json"), -1) {
		if !strings.Contains(string(text), "\n"+name+"{") {
			t.Errorf("deploy/ names %s, which there is not", name)
		}
	}
	if strings.Contains(string(text), "histogram") {
		t.Errorf("a histogram of one run begins at zero each time:\n%s", text)
	}
	for why, name := range map[string]string{"no exporter reads it": "report", "it names no run": ".prom", "its name is not a label": "\xff.prom"} {
		if code, _, stderr := b.run(t, "run", "--metrics-file", filepath.Join(dir, name), "k", "--", "true"); code != 64 {
			t.Errorf("%q was taken for a file, though %s: %d %s", name, why, code, stderr)
		}
	}
}

// success returns the time of the last success in the file of a run.
func success(t *testing.T, b *bench) string {
	t.Helper()
	_, rest, found := strings.Cut(b.read("job.prom"), "\ndibs_run_success_timestamp_seconds{run=\"job\"} ")
	if !found {
		t.Fatalf("no last success in\n%s", b.read("job.prom"))
	}
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// TestMetricsFileKeepsLastSuccess: the time of the last success stays over runs that fail, that
// are skipped, or that do not start. A host that skips a run because another host's succeeded has
// that time.
func TestMetricsFileKeepsLastSuccess(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := func(code int, args ...string) string {
		t.Helper()
		if got, _, stderr := b.run(t, append([]string{"run", "--metrics-file", "job.prom"}, args...)...); got != code {
			t.Errorf("%q exited with %d: %s", args, got, stderr)
		}
		return success(t, b)
	}
	if first := run(3, "k", "--", "sh", "-c", "exit 3"); first != "0" {
		t.Errorf("before any success it is %s", first)
	}
	then := run(0, "k", "--", "true")
	for _, test := range []struct {
		code int
		args []string
	}{
		{3, []string{"k", "--", "sh", "-c", "exit 3"}},
		{127, []string{"k", "--", "no-such-command"}},
		{69, []string{"--store", "sqlite:/nonexistent/dibs.db", "k", "--", "true"}},
	} {
		if kept := run(test.code, test.args...); kept != then || then == "0" {
			t.Errorf("after %q it is %s, and was %s", test.args, kept, then)
		}
	}
	holder := b.start(t, "run", "k", "--", "sh", "-c", "echo >in; while ! test -e enough; do sleep 0.01; done")
	testkit.Eventually(t, "the holder", func() bool { return b.exists("in") })
	if kept := run(75, "--skip", "k", "--", "true"); kept != then {
		t.Errorf("after a skipped run it is %s, and was %s", kept, then)
	}
	b.write(t, "enough", "")
	holder.code(t)

	b.says(t, 0, "", "", "run", "--once-per", "1h", "daily", "--", "true") // on another host
	testkit.Must(t, os.Remove(b.path("job.prom")))
	if done := run(0, "--once-per", "1h", "daily", "--", "true"); done == "0" {
		t.Error("the success of another host is not known")
	}
}

// TestShowOnceRun: dibs show says how a run of --once-per ended, where, and when it began.
func TestShowOnceRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host, err := os.Hostname()
	testkit.Must(t, err)
	b.says(t, 0, "", "", "run", "--once-per", "1h", "good", "--", "true")
	b.says(t, 4, "", "", "run", "--once-per", "1h", "--once-per-failed", "bad", "--", "sh", "-c", "exit 4")
	for key, want := range map[string]string{
		"good": "run        succeeded, exit code 0\ncommand    true\nhost       " + host + "\nbegan      20",
		"bad":  "run        failed, exit code 4\ncommand    sh\nhost       " + host + "\nbegan      20",
	} {
		_, stdout, _ := b.run(t, "show", key)
		if !strings.Contains(stdout, want) || !strings.Contains(stdout, " ago; it took ") {
			t.Errorf("%s is shown as\n%s", key, stdout)
		}
	}
	b.says(t, 0, `"run":{"succeeded":false,"exit":4,"host":"`+host+`","command":"sh","began":"20`, "", "show", "--json", "bad")

	// A record that only looks like one is not taken for a run, and counts as a success.
	s := b.inspector(t)
	client, err := dibs.New(s, nil)
	testkit.Must(t, err)
	lease, err := client.Acquire(t.Context(), "foreign", nil)
	testkit.Must(t, err)
	testkit.Must(t, lease.Complete(t.Context(), []byte(`{"exit":3,"command":"x"}`), time.Hour))
	testkit.Must(t, client.Close())
	if _, stdout, _ := b.run(t, "show", "foreign"); strings.Contains(stdout, "exit code") {
		t.Errorf("a foreign record is shown as\n%s", stdout)
	}
	b.says(t, 0, "", `"foreign" succeeded`, "run", "--once-per", "1h", "foreign", "--", "false")
}
