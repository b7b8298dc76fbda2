//go:build nightly

package command_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs"
)

// TestTorture: a store that keeps what it promises passes, in words, as JSON and as a
// page, and nothing of the run is left in it.
func TestTorture(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, b *bench) {
		t.Parallel()
		b.env = append(b.env, "TMPDIR="+t.TempDir())
		code, stdout, stderr := b.run(t, "torture", "--duration=3s", "--faults=kill,stop", "--workers=3", "--seed=7", "--html=page.html")
		for _, want := range []string{"0 violations, with ", "kill ", "stop ", "seed 7; again with: dibs torture --store '", " --seed 7 --duration 3s --workers 3 --faults kill,stop\n"} {
			if code != 0 || !strings.Contains(stdout, want) {
				t.Fatalf("it ended with %d, and %q is not in %s%s", code, want, stdout, stderr)
			}
		}
		if page := b.read("page.html"); !strings.Contains(page, "0 violations") {
			t.Errorf("the page is %.500q", page)
		}
		for e, err := range b.inspector(t).List(t.Context(), dibs.Query{}) {
			t.Errorf("left behind: %+v, %v", e, err)
		}
	})
}

// TestTortureDoesNotApply: a fault that was asked for and does not apply is a failure, whose
// histories are kept.
func TestTortureDoesNotApply(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := t.TempDir()
	b.env = append(b.env, "TMPDIR="+dir)
	code, stdout, stderr := b.run(t, "torture", "--faults=flushall", "--duration=1s")
	if code != 1 || !strings.Contains(stdout, "the fault flushall, which was asked for, does not apply") {
		t.Errorf("it ended with %d: %s%s", code, stdout, stderr)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "dibs-torture-*", "runner.jsonl"))
	if must(t, err); len(kept) != 1 {
		t.Errorf("kept: %q", kept)
	}
}

// TestTortureInterrupted: who is interrupted ends in order, says what there is to say, and
// leaves no process behind.
func TestTortureInterrupted(t *testing.T) {
	for _, test := range []struct {
		name   string
		signal syscall.Signal
		group  bool // as a terminal does it, and what supervises services
	}{{"alone", syscall.SIGINT, false}, {"interrupted", syscall.SIGINT, true}, {"terminated", syscall.SIGTERM, true}} {
		t.Run(test.name, func(t *testing.T) { interruptTorture(t, test.signal, test.group) })
	}
}

func interruptTorture(t *testing.T, s syscall.Signal, group bool) {
	b := newBench(t)
	dir := t.TempDir()
	b.env = append(b.env, "TMPDIR="+dir)
	p := b.command("torture", "--json", "--faults=kill,file-lock,io-error")
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.begin(t)
	eventually(t, "work", func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "*", "worker-4-0.jsonl"))
		return len(files) == 1 && size(files[0]) > 1000 && strings.Contains(p.stderr.String(), "under fire")
	})
	to := p.Process.Pid
	if group {
		to = -to
	}
	must(t, syscall.Kill(to, s))
	if code := p.code(t); code != 128+int(s) {
		t.Errorf("it ended with %d", code)
	}
	var report struct {
		Interrupted bool
		Swept       int
		Violations  []string
		Broken      []string
	}
	if err := json.Unmarshal([]byte(p.stdout.String()), &report); err != nil || !report.Interrupted || report.Swept == 0 || len(report.Violations)+len(report.Broken) > 0 {
		t.Errorf("the report is %+v, %v", report, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}
