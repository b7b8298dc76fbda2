//go:build unix

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/httpstore"
	"github.com/dibs-go/dibs/internal/testkit"
)

// pythonClient is the folder of the client for Python.
const pythonClient = "../../clients/python"

// runPython runs Python with the client and returns its output. DIBS_PROGRAM is the program.
func runPython(t *testing.T, variables []string, args ...string) string {
	t.Helper()
	client, err := filepath.Abs(pythonClient)
	testkit.Must(t, err)
	exe, err := os.Executable()
	testkit.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*testkit.Limit)
	defer cancel()
	c := exec.CommandContext(ctx, "python3", args...)
	c.Dir = client
	c.Env = append(append(os.Environ(), "DIBS_PROGRAM="+exe, "PYTHONPATH="+client, "PYTHONDONTWRITEBYTECODE=1"), variables...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it started ends with it
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatalf("python3 %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestPythonClient runs the tests of the client for Python, which start the program themselves.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(pythonClient + "/tests/test_*.py")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", pythonClient, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			if out := runPython(t, nil, "tests/"+filepath.Base(file)); !strings.HasSuffix(out, "\nOK\n") {
				t.Error(out)
			}
		})
	}
}

// TestPythonExample runs the example, which shows the fault and then the cure.
func TestPythonExample(t *testing.T) {
	t.Parallel()
	example, err := filepath.Abs("../../examples/python/session.py")
	testkit.Must(t, err)
	const want = "without a lock: 2 sessions\nlock: 1 session, 1 request skipped\nonce: 1 session, both requests have it\n"
	if got := runPython(t, []string{"DIBS_SERVER=" + startServe(t)}, example); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestPythonAndGoShare: each reads the other's results and redeems the other's tickets.
func TestPythonAndGoShare(t *testing.T) {
	t.Parallel()
	url := startServe(t)
	run := func(text string, args ...string) string {
		t.Helper()
		return runPython(t, []string{"DIBS_SERVER=" + url}, append([]string{"-c", "import dibs, json, sys\nkeys = dibs.connect()\n" + text}, args...)...)
	}
	store, err := httpstore.Open(url, nil)
	testkit.Must(t, err)
	defer store.Close()
	client, err := dibs.New(store, nil)
	testkit.Must(t, err)
	defer client.Close()
	ctx := t.Context()

	type receipt struct {
		ID   int    `json:"id"`
		Name string `json:"name"`
	}
	fromGo := receipt{17, "für"}
	if _, err := dibs.Once(ctx, client, "of Go", nil, func(context.Context) (receipt, error) { return fromGo, nil }); err != nil {
		t.Fatal(err)
	}
	var got receipt
	out := run(`print(json.dumps(keys.once("of Go", lambda: 1/0)))`)
	if err := json.Unmarshal([]byte(out), &got); err != nil || got != fromGo {
		t.Errorf("Python got %s, %v", out, err)
	}
	run(`
def declined(): raise KeyError("declined")
keys.once("of Python", lambda: {"id": 18, "name": "é"})
try: keys.once("error", declined, remember=KeyError)
except KeyError: pass`)
	if got, err := dibs.Once(ctx, client, "of Python", nil, func(context.Context) (receipt, error) {
		t.Error("it runs again")
		return receipt{}, nil
	}); err != nil || got != (receipt{18, "é"}) {
		t.Errorf("Go got %v, %v", got, err)
	}
	if _, err := dibs.Once(ctx, client, "error", nil, func(context.Context) (int, error) { return 1, nil }); err == nil || err.Error() != "'declined'" {
		t.Errorf("Go got the error %v", err)
	}
	if got := ruby(t, []string{"DIBS_SERVER=" + url}, "-rdibs", "-e", `print Dibs.connect.once("of Python") { raise "it runs again" }["name"]`); got != "é" {
		t.Errorf("Ruby got %s", got)
	}

	// The place of Python is in front of that of Go.
	key := "tickets \xff"
	text := strings.TrimSpace(run(`print(keys.reserve(b"tickets \xff"))`))
	var ofPython dibs.Place
	if err := ofPython.UnmarshalText([]byte(text)); err != nil || ofPython.Key != client.Key(key) {
		t.Fatalf("%q is the place of %v, %v", text, ofPython.Key, err)
	}
	ofGo, _, err := client.Reserve(ctx, key, time.Hour, nil)
	testkit.Must(t, err)
	ticket, err := ofGo.MarshalText()
	testkit.Must(t, err)
	const redeem = `
try:
    with keys.redeem(sys.argv[1], wait=0) as lease: print(lease.key == b"tickets \xff")
except dibs.Held: print("held")`
	if got := run(redeem, string(ticket)); got != "held\n" {
		t.Errorf("the second place: %s", got)
	}
	lease, err := client.Redeem(ctx, ofPython, nil)
	testkit.Must(t, err)
	testkit.Must(t, lease.Release())
	if got := run(redeem, string(ticket)); got != "True\n" {
		t.Errorf("the second place after the first: %s", got)
	}
}
