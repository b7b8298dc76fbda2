//go:build unix

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/httpstore"
	"github.com/dibs-go/dibs/internal/testkit"
)

// jsClient is the folder of the client for JavaScript.
const jsClient = "../../clients/js"

// node runs Node in the client's folder and returns its output. DIBS_PROGRAM is the program.
func node(t *testing.T, variables []string, args ...string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*testkit.Limit)
	defer cancel()
	c := exec.CommandContext(ctx, "node", args...)
	c.Dir = jsClient
	c.Env = append(append(os.Environ(), "DIBS_PROGRAM="+exe), variables...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it started ends with it
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatalf("node %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// jsPassed matches what Node prints when all tests ran and passed.
var jsPassed = regexp.MustCompile(`(?m)^# pass [1-9]\d*\n# fail 0\n# cancelled 0\n# skipped 0\n# todo 0$`)

// nodeTests runs a file of tests.
func nodeTests(t *testing.T, file string) {
	t.Helper()
	if out := node(t, nil, "--test-reporter=tap", "test/"+file); !jsPassed.MatchString(out) {
		t.Error(out)
	}
}

// js runs JavaScript with the client as dibs and its function connect.
func js(t *testing.T, server, text string, args ...string) string {
	t.Helper()
	text = `import * as dibs from "dibs"; const { connect } = dibs; ` + text
	return node(t, []string{"DIBS_SERVER=" + server}, append([]string{"--input-type=module", "-e", text}, args...)...)
}

// TestJSClient runs the tests of the client for JavaScript, which start the program themselves.
func TestJSClient(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(jsClient + "/test/*.test.js")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", jsClient, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			nodeTests(t, filepath.Base(file))
		})
	}
}

// TestJSExample runs the example, which shows the fault and then the cure.
func TestJSExample(t *testing.T) {
	t.Parallel()
	const want = "without a lock: 2 sessions\nlock: 1 session, 1 request skipped\nonce: 1 session, both requests have it\n"
	if got := node(t, []string{"DIBS_SERVER=" + startServe(t)}, "../../examples/js/session.mjs"); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestJSSharesResults: JavaScript, Go and Ruby read each other's results.
func TestJSSharesResults(t *testing.T) {
	t.Parallel()
	url := startServe(t)
	client := serveClient(t, url)
	ctx := t.Context()

	type receipt struct {
		ID   int64  `json:"id"` // more digits than a number of JavaScript has
		Name string `json:"name"`
	}
	fromGo := receipt{1<<62 + 1, "für"}
	if _, err := dibs.Once(ctx, client, "of Go", nil, func(context.Context) (receipt, error) { return fromGo, nil }); err != nil {
		t.Fatal(err)
	}
	out := js(t, url, `const got = await connect().once("of Go", () => { throw new Error("it runs again"); });
		process.stdout.write(JSON.stringify({ id: typeof got.id + " " + got.id, name: got.name }));`)
	if want := `{"id":"bigint 4611686018427387905","name":"für"}`; out != want {
		t.Errorf("JavaScript got %s, want %s", out, want)
	}

	js(t, url, `const keys = connect();
		await keys.once("of JavaScript", () => ({ id: 4611686018427387905n, name: "é" }));
		await keys.once("error", { remember: RangeError }, () => { throw new RangeError("declined"); }).catch(() => {});`)
	if got, err := dibs.Once(ctx, client, "of JavaScript", nil, func(context.Context) (receipt, error) {
		t.Error("it runs again")
		return receipt{}, nil
	}); err != nil || got != (receipt{1<<62 + 1, "é"}) {
		t.Errorf("Go got %v, %v", got, err)
	}
	if _, err := dibs.Once(ctx, client, "error", nil, func(context.Context) (int, error) { return 1, nil }); err == nil || err.Error() != "declined" {
		t.Errorf("Go got the error %v", err)
	}

	server := []string{"DIBS_SERVER=" + url}
	var got receipt
	out = ruby(t, server, "-rdibs", "-e", `print JSON.generate(Dibs.connect.once("of JavaScript") { raise "it runs again" })`)
	if err := json.Unmarshal([]byte(out), &got); err != nil || got != (receipt{1<<62 + 1, "é"}) {
		t.Errorf("Ruby got %s, %v", out, err)
	}
	ruby(t, server, "-rdibs", "-e", `Dibs.connect.once("of Ruby") { { id: 2**64, list: [nil, 1.5] } }`)
	if out := js(t, url, `const got = await connect().once("of Ruby", () => 1); console.log(got.id === 2n ** 64n, got.list);`); out != "true [ null, 1.5 ]\n" {
		t.Errorf("JavaScript got %s", out)
	}
}

// TestJSSharesTickets: JavaScript and Go redeem each other's tickets, at their places.
func TestJSSharesTickets(t *testing.T) {
	t.Parallel()
	url := startServe(t)
	client := serveClient(t, url)
	ctx := t.Context()
	const bytes = `Buffer.from("tickets \u00ff", "latin1")`
	key := "tickets \xff"

	text := js(t, url, `process.stdout.write(await connect().reserve(`+bytes+`));`)
	var ofJS dibs.Place
	if err := ofJS.UnmarshalText([]byte(text)); err != nil || ofJS.Key != client.Key(key) {
		t.Fatalf("%q is the place of %v, %v", text, ofJS.Key, err)
	}
	ofGo, _, err := client.Reserve(ctx, key, time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := ofGo.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	const redeem = `const said = await connect().redeem(process.argv[1], { wait: 0 }, (l) => String(l.key.equals(` + bytes + `)))
		.catch((e) => e.name); process.stdout.write(said);`
	if got := js(t, url, redeem, string(ticket)); got != "HeldError" {
		t.Errorf("the second place: %s", got)
	}
	lease, err := client.Redeem(ctx, ofJS, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	if got := js(t, url, redeem, string(ticket)); got != "true" {
		t.Errorf("the second place after the first: %s", got)
	}
}

// serveClient returns a client of dibs serve, which ends with the test.
func serveClient(t *testing.T, url string) *dibs.Client {
	t.Helper()
	store, err := httpstore.Open(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dibs.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		store.Close()
	})
	return client
}
