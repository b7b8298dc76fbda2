package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/torture"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

func TestMain(m *testing.M) {
	torture.Child(torture.OpenStore)
	os.Exit(m.Run())
}

// call runs the program in this process, with a temporary folder of its own.
func call(t *testing.T, args ...string) (code int, stdout, stderr, temp string) {
	t.Helper()
	var errs bytes.Buffer
	code, stdout, temp = callWith(t, t.Context(), &errs, args...)
	return code, stdout, errs.String(), temp
}

func callWith(t *testing.T, ctx context.Context, stderr io.Writer, args ...string) (code int, stdout, temp string) {
	t.Helper()
	temp = t.TempDir()
	t.Setenv("TMPDIR", temp)
	var out bytes.Buffer
	code = run(ctx, append([]string{"torture"}, args...), &out, stderr, func(string) string { return "" })
	return code, out.String(), temp
}

// entries returns the names of what is in the folder.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	testkit.Must(t, err)
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// TestUsage: the program says what is wrong with its flags or its store, and leaves nothing behind.
func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"", 64, "no store is named"},
		{"--store=memory:", 64, "cannot share a store in memory"},
		{"--store=sqlite:/x.db --faults=nonsense", 64, `faults: there is no fault "nonsense"`},
		{"--store=sqlite:/x.db --workers=-1", 64, "workers is -1"},
		{"--store=sqlite:/x.db --workers=0", 64, "more than 0"},
		{"--store=sqlite:/x.db --lease=10ms", 64, "lease: 10ms is too short"},
		{"--store=sqlite:/x.db --lease=2m", 64, "lease is 2m0s"},
		{"--store=sqlite:/x.db --duration=1ms", 64, "duration is 1ms"},
		{"--store=sqlite:/x.db --duration=0", 64, "more than 0"},
		{"--store=sqlite:/x.db --duration=soon", 64, "write 30s, 5m, 24h or 30d"},
		{"--store=sqlite:x.db", 64, "write sqlite:/"},
		{"--nonsense", 64, "nonsense"},
		{"extra", 64, `"extra" is not a flag`},
		{"--store=sqlite:/missing/dibs.db", 69, "missing"},
	} {
		code, stdout, stderr, temp := call(t, strings.Fields(test.args)...)
		if code != test.code || stdout != "" || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: exit code %d, want %d; %q is not in %s%s", test.args, code, test.code, test.want, stdout, stderr)
		}
		if left := entries(t, temp); len(left) > 0 {
			t.Errorf("%s: left behind: %q", test.args, left)
		}
	}
}

// TestHelp: the help names every fault, and no password.
func TestHelp(t *testing.T) {
	_, _, stderr, _ := call(t, "--store=sqlite:/x.db", "--faults=nonsense")
	_, list, _ := strings.Cut(stderr, "there are ")
	list, _, ok := strings.Cut(list, ", the kinds ")
	if !ok {
		t.Fatalf("no fault is named in %s", stderr)
	}
	var help bytes.Buffer
	code := run(t.Context(), []string{"torture", "--help"}, &help, nil, func(string) string { return "postgres://app:secret@h/app?password=secret" })
	words := strings.FieldsFunc(help.String(), func(c rune) bool { return c == ',' || c == '\n' || c == ' ' })
	for name := range strings.SplitSeq(list, ", ") {
		if code != 0 || !slices.Contains(words, name) {
			t.Errorf("exit code %d, and %s is not named", code, name)
		}
	}
	if strings.Contains(help.String(), "secret") {
		t.Error("the help has a password in it")
	}
}

// TestPasses: a store that keeps what it promises passes, and the run leaves nothing in it.
func TestPasses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dibs.db")
	code, stdout, stderr, temp := call(t, "--store=sqlite:"+file, "--duration=1s", "--faults=kill,stop", "--workers=3", "--seed=7")
	for _, want := range []string{
		"0 violations, with ", "kill ", "stop ",
		"seed 7; again with: dibs-prove torture --store 'sqlite:" + file + "' --seed 7 --duration 1s --workers 3 --faults kill,stop\n",
	} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Fatalf("exit code %d, and %q is not in %s%s", code, want, stdout, stderr)
		}
	}
	s, err := sqlitestore.Open(file, nil)
	testkit.Must(t, err)
	defer s.Close()
	for e, err := range s.List(t.Context(), store.Query{}) {
		t.Errorf("left behind: %+v, %v", e, err)
	}
	if left := entries(t, temp); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestProgress: a run reports how far it is, which is one line on a terminal.
func TestProgress(t *testing.T) {
	var last torture.Progress
	o := torture.Options{
		URL: "sqlite:" + filepath.Join(t.TempDir(), "dibs.db"), Dir: t.TempDir(), Duration: time.Second, Faults: "kill", Workers: 2,
		Progress: func(p torture.Progress) { last = p },
	}
	r, err := torture.Run(t.Context(), &o)
	testkit.Must(t, err)
	if last.Doing != "checking" || last.Left != 0 || last.Faults != 1 || last.Hit > 1 || last.Lines == 0 || !r.OK() {
		t.Errorf("the last progress is %+v, and the report is OK: %v", last, r.OK())
	}
	for want, p := range map[string]torture.Progress{
		"faults strike, 1m2s left: 1 of 3 faults have hit, 4 lines of history": {Doing: "faults strike", Left: 62*time.Second + 1, Faults: 3, Hit: 1, Lines: 4},
		"checking: 3 of 3 faults have hit, 5 lines of history":                 {Doing: "checking", Faults: 3, Hit: 3, Lines: 5},
	} {
		if got := progressText(p); got != want {
			t.Errorf("%+v is %q; want %q", p, got, want)
		}
	}
}

// TestDoesNotApply: a run fails if a fault that --faults names does not apply, and its histories are kept.
func TestDoesNotApply(t *testing.T) {
	code, stdout, stderr, temp := call(t, "--store=sqlite:"+filepath.Join(t.TempDir(), "dibs.db"), "--faults=flushall", "--duration=1s")
	if code != 1 || !strings.Contains(stdout, "the fault flushall was asked for and does not apply") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	if kept, err := filepath.Glob(filepath.Join(temp, "dibs-torture-*", "runner.jsonl")); err != nil || len(kept) != 1 {
		t.Errorf("kept: %q, %v", kept, err)
	}
}

// TestInterrupted: an interrupted run ends in order, reports what it has, and leaves nothing behind.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	log := writer(func(line []byte) {
		if bytes.Contains(line, []byte("faults strike")) {
			cancel(&interruptedError{syscall.SIGTERM})
		}
	})
	code, stdout, temp := callWith(t, ctx, log, "--store=sqlite:"+filepath.Join(t.TempDir(), "dibs.db"), "--json", "--faults=kill")
	var report struct {
		Interrupted        bool
		Violations, Broken []string
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || !report.Interrupted || len(report.Violations)+len(report.Broken) > 0 {
		t.Errorf("the report is %+v, %v", report, err)
	}
	if left := entries(t, temp); code != 143 || len(left) > 0 {
		t.Errorf("exit code %d, left behind: %q", code, left)
	}
}

// writer is an io.Writer that hands over what is written.
type writer func(line []byte)

func (w writer) Write(line []byte) (int, error) {
	w(line)
	return len(line), nil
}
