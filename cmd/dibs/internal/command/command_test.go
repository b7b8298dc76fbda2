package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// call runs the program in this process.
func call(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), args, Env{
		Stdin:  strings.NewReader("y\n"),
		Stdout: &out, Stderr: &errs,
		Getenv: func(name string) string { return env[name] },
	})
	return code, out.String(), errs.String()
}

// TestUsage: a wrong command line exits with 64 and a message, and changes nothing.
func TestUsage(t *testing.T) {
	t.Chdir(t.TempDir())
	tests := []struct {
		args string
		want string
	}{
		{"--nonsense", "unknown flag: --nonsense"},
		{"prxy", `there is no command "prxy"; did you mean "proxy"?`},
		{"prxy --upstream http://x", `there is no command "prxy"; did you mean "proxy"?`},
		{"nonsense --x", `there is no command "nonsense"; dibs --help lists them`},
		{"help porxy", `did you mean "proxy"?`},
		{"config", "dibs config check dibs.yaml"},
		{"config chek", `there is no command "chek"; did you mean "config check"?`},
		{"completion", "name the shell: dibs completion writes it for bash, fish, powershell, zsh"},
		{"completion ksh", `there is no completion for "ksh"`},
		{"proxy --upsteam http://x", "unknown flag: --upsteam; did you mean --upstream?"},
		{"ls --jsn", "did you mean --json?"},
		{"ls --all", "unknown flag: --all; did you mean --state all?"},
		{"ls --done", "did you mean --state done?"},
		{"ls done", "accepts only flags; did you mean --state done?"},
		{"ls --since", "did you mean --sort since?"},
		{"proxy --takeover", "did you mean --on-crash takeover?"},
		{"healthcheck --admin :9090", "unknown flag: --admin; dibs proxy has that setting; the usage is dibs healthcheck [ADDR]"},
		{"serve --log-level debug", "unknown flag: --log-level; dibs proxy has that setting"},
		{"prune --namespace x", "unknown flag: --namespace; remove it, because dibs prune is not about one namespace"},
		{"ls -x", "the usage is dibs ls [--glob PATTERN]"},
		{"run -wait 5m k -- true", "did you mean --wait?"},
		{"run --wait k -- true", `--wait: "k" is not a duration: write 30s, 5m, 24h or 30d`},
		{"run --permits x k -- true", `--permits: "x" is not a whole number`},
		{"run --permits 99999999999999999999 k -- true", "--permits: 99999999999999999999 is out of range"},
		{"ls --json=x", `--json: "x" is neither true nor false`},
		{"serve --max-body 8 --store memory:", "--max-body: \"8\" is 8 bytes, which is too small; did you mean 8MiB or 8KiB?"},
		{"serve --max-body 256 --store memory:", "--max-body: \"256\" is 256 bytes, which is too small; did you mean 256MiB or 256KiB?"},
		{"serve --log-format jsn --store memory:", "--log-format: \"jsn\" is none of text, json; did you mean json?"},
		{"run --once-per 1h --once-per-from begin --store sqlite:/x k -- true", "--once-per-from: \"begin\" is none of start, end"},
		{"ls --state hold --store sqlite:/x", "--state: \"hold\" is none of held, waiting, unknown, abandoned, done, all; did you mean held?"},
		{"serve --tokens /none --store memory:", "--tokens: there is no file /none; make one: echo \"NAME $(printf %s TOKEN | sha256sum | cut -c 1-64) - use,look\" >/none"},
		{"serve --tls-cert /none --tls-key /none.key --store memory:", "there is no file /none; for a trial, make both files: openssl req "},
		{"proxy --config /none.yaml", "--config: there is no file /none.yaml; make one: printf "},
		{"serve --listen 7331 --store memory:", "--listen: \"7331\" is a port alone; write :7331"},
		{"serve --listen localhost --store memory:", "--listen: \"localhost\" is not HOST:PORT"},
		{"run --wait 5 k -- true", "did you mean 5s?"},
		{"ls --store /tmp/x.db", "did you mean sqlite:/tmp/x.db?"},
		{"serve --max-body 8M", `--max-body: "8M" is not a size: write bytes, or a number with KiB, MiB or GiB`},
		{"proxy", "upstream: it is missing"},
		{"proxy --upstream http://x extra", "extra"},
		{"proxy --upstream http://x --store nonsense", "the known URLs are memory:, sqlite:/PATH"},
		{"proxy --upstream http://x --store mongo://h", `"mongo" is unknown; the known URLs are memory:, sqlite:/PATH, redis://HOST`},
		{"proxy --upstream http://x --namespace a\x01b --store memory:", "namespace"},
		{"proxy --config missing.yaml", "missing.yaml"},
		{"proxy --upstream http://x --access-log=perhaps", "neither true nor false"},
		{"proxy --upstream http://x --log-format loud", `"loud" is none of text, json`},
		{"proxy --upstream http://x --max-stored 1MiB --store memory:", "set the field max-stored in the file of --config, or DIBS_PROXY_MAX_STORED in the environment"},
		{"show", "name the key in one way: KEY, --id ID, --glob PATTERN or --digest DIGEST"},
		{"show a b", "name one key; a key with spaces needs quotes, as in dibs show 'a b'"},
		{"show a --id aaaaaaaaaaaaaaaa", "in one way"},
		{"show --id short", "is not an ID"},
		{"show --glob=", "the pattern is empty"},
		{"show --key=", "the key is empty"},
		{"show k --store memory:", "nothing to look into"},
		{"resolve k", "choose the outcome"},
		{"resolve k --result 1 --rerun", "choose the outcome"},
		{"resolve k --result paid", "not JSON"},
		{"resolve k --result 1 --body x", "no effect with --result"},
		{"resolve k --result 1 --retention 1ms", "retention"},
		{"resolve k --status 200 --rerun", "choose the outcome"},
		{"resolve k --status 99", "not the status of an answer"},
		{"resolve k --rerun --body x", "no effect with --rerun"},
		{"resolve k --status 200 --header nonsense", "Name: value"},
		{"resolve k --status 200 --header X-A:a\x7fb", "Name: value"},
		{"resolve k --status 200 --header \u00e4:b", "Name: value"},
		{"resolve k --status 200 --retention 1ms", "retention"},
		{"forget", "name the key in one way"},
		{"demo --store memory:", "cannot share a store in memory"},
		{"version extra", "extra"},
		{"help nonsense", `there is no command "nonsense"`},
		{"help run nonsense", `there is no command "run nonsense"`},
		{"ls nightly-report", `"nightly-report" is not a flag, and dibs ls accepts only flags`},
	}
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			code, stdout, stderr := call(t, nil, strings.Fields(test.args)...)
			if code != 64 || stdout != "" || !strings.Contains(stderr, test.want) || !strings.HasPrefix(stderr, "dibs") {
				t.Errorf("%d %q %q; want 64 and %q", code, stdout, stderr, test.want)
			}
		})
	}
	if left, _ := os.ReadDir("."); len(left) != 0 {
		t.Errorf("there are files now: %v", left)
	}
}

// leave creates a store with a key in each state. It returns the store's URL and
// the ID of the attempt whose outcome is unknown.
func leave(t *testing.T) (url, unknown string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dibs.db")
	store, err := sqlitestore.Open(path, nil)
	testkit.Must(t, err)
	defer store.Close()
	record, err := idempotency.EncodeAnswer("http:", &idempotency.Answer{Status: 201, Body: []byte("hello")})
	testkit.Must(t, err)
	client, err := dibs.New(store, &dibs.Options{Label: "a test"})
	testkit.Must(t, err)
	defer client.Close()
	acquire := func(key string, o *dibs.AcquireOptions) *dibs.Lease {
		lease, err := client.Acquire(t.Context(), key, o)
		testkit.Must(t, err)
		return lease
	}
	testkit.Must(t, acquire(scope+"done", nil).Complete(t.Context(), record, time.Hour))
	testkit.Must(t, acquire("urn:dibs:claim:not-an-id", nil).Complete(t.Context(), []byte("raw"), time.Hour))
	testkit.Must(t, acquire("-v", nil).Complete(t.Context(), []byte("raw"), time.Hour))
	testkit.Must(t, acquire("evil \x1b[2J\u202ekey", nil).Complete(t.Context(), []byte("raw"), time.Hour))
	testkit.Must(t, acquire("bytes \xff\x00", nil).Complete(t.Context(), []byte("raw"), time.Hour))
	testkit.Must(t, acquire("abandoned", nil).Abandon(t.Context()))
	lost := acquire(scope+"unknown", &dibs.AcquireOptions{AtMostOnce: true})
	testkit.Must(t, lost.Abandon(t.Context()))
	return "sqlite:" + path, lost.ID()
}

// scope is how the keys of one client and host begin.
const scope = "http:AAAAAAAAAAAAAAAAAAAAAA:"

// TestShow: show prints the state, the holder and the record of a key.
func TestShow(t *testing.T) {
	url, unknown := leave(t)
	tests := []struct {
		name   string
		args   []string
		code   int
		has    []string
		hasNot []string
	}{
		{"an answer", []string{"show", scope + "done"}, 0, []string{"done", "HTTP 201 with a body of 5 bytes", "expires in ", "m", "s"}, []string{"hello"}},
		{"by the client's part of it", []string{"show", "done"}, 1, []string{"the store has no record, holder or waiter of the key done", scope + "done"}, nil},
		{"nothing", []string{"show", "nothing"}, 1, []string{"store " + url + "\n", "the store has no record, holder or waiter of the key nothing"}, []string{"clients", "it is there"}},
		{"a key of another namespace", []string{"show", "abandoned", "--namespace", "shop"}, 1, []string{"in the namespace shop; it is there with no --namespace"}, nil},
		{"a namespace that moves the cursor", []string{"show", scope + "done", "--namespace", "a\x1bb"}, 1, []string{`in the namespace a\x1bb`}, nil},
		{"another namespace", []string{"show", scope + "done", "--namespace", "shop"}, 1, []string{"in the namespace shop"}, nil},
		{"an unknown outcome", []string{"show", "urn:dibs:claim:" + unknown}, 0, []string{scope + "unknown", "unknown: it may or may not", "id " + unknown, "(a test)"}, nil},
		{"an unknown outcome, by --id", []string{"show", "--id", unknown}, 0, []string{scope + "unknown"}, nil},
		{"an unknown ID", []string{"show", "--id", "aaaaaaaaaaaaaaaa"}, 1, []string{"the attempt aaaaaaaaaaaaaaaa"}, nil},
		{"a key that looks like an ID, but is none", []string{"show", "urn:dibs:claim:not-an-id"}, 0, []string{"done"}, nil},
		{"an ID that is none", []string{"show", "urn:dibs:claim:nope"}, 1, []string{"no record", "nope is not the ID of an attempt: an ID has 16 characters, a to z and 2 to 7"}, nil},
		{"a key that begins with -", []string{"show", "--key=-v"}, 0, []string{"-v", "3 bytes"}, nil},
		{"a pattern", []string{"show", "--glob", "*:d?ne"}, 0, []string{scope + "done"}, []string{"unknown"}},
		{"a pattern that matches nothing", []string{"show", "--glob", "x*"}, 1, []string{"a key that matches x*"}, nil},
		{"what would play with the terminal", []string{"show", "--glob", "evil*"}, 0, []string{`evil \x1b[2J\u202ekey`}, []string{"\x1b", "\u202e"}},
		{"an abandoned key", []string{"show", "abandoned"}, 0, []string{"abandoned", "lease      expired"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			code, stdout, stderr := call(t, map[string]string{"DIBS_STORE": url}, test.args...)
			all := stdout + stderr
			if code != test.code {
				t.Errorf("it exited with %d: %s", code, all)
			}
			for _, want := range test.has {
				if !strings.Contains(all, want) {
					t.Errorf("%q is not in %q", want, all)
				}
			}
			for _, no := range test.hasNot {
				if strings.Contains(all, no) {
					t.Errorf("%q is in %q", no, all)
				}
			}
		})
	}
}

// TestShowJSON: one object a line, with the fields that are promised.
func TestShowJSON(t *testing.T) {
	url, unknown := leave(t)
	code, stdout, stderr := call(t, nil, "show", "--glob", "*", "--json", "--store", url)
	if code != 0 || stderr != "" || strings.Count(stdout, "\n") != 7 {
		t.Fatalf("%d %q %q", code, stdout, stderr)
	}
	entries := make(map[string]map[string]any)
	for line := range strings.Lines(stdout) {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		key, ok := e["key"].(string)
		if !ok {
			key = fmt.Sprint("base64 ", e["key_base64"])
		}
		entries[key] = e
	}
	if e := entries["base64 Ynl0ZXMg/wA="]; e == nil || e["key"] != nil {
		t.Errorf("a key of bytes: %v", e)
	}
	done := entries[scope+"done"]
	record, _ := done["record"].(map[string]any)
	if done["state"] != "done" || done["namespace"] != "" || record["status"] != 201.0 || record["bytes"].(float64) < 5 ||
		record["left_ms"].(float64) > 3.6e6 || record["age_ms"] == nil || len(fmt.Sprint(done["id"])) != 16 {
		t.Errorf("done: %v", done)
	}
	lost := entries[scope+"unknown"]
	holder, _ := lost["holder"].(map[string]any)
	if lost["state"] != "unknown" || lost["id"] != unknown || lost["attempt"] != 1.0 || lost["fence"].(float64) == 0 || lost["left_ms"].(float64) > 0 ||
		holder["label"] != "a test" || holder["pid"] != float64(os.Getpid()) || holder["host"] == "" {
		t.Errorf("unknown: %v", lost)
	}
	if _, err := time.Parse(time.RFC3339, fmt.Sprint(holder["since"])); err != nil {
		t.Errorf("since: %v", err)
	}
	if entries["abandoned"]["state"] != "abandoned" {
		t.Errorf("abandoned: %v", entries["abandoned"])
	}
}

// TestResolve: an unknown outcome is resolved once, after a yes.
func TestResolve(t *testing.T) {
	url, unknown := leave(t)
	steps := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"resolve", unknown, "--rerun"}, 1, "the store has no record, holder or waiter of the key " + unknown + "; an ID is named by --id " + unknown},
		{[]string{"show", unknown}, 1, "; an ID is named by --id " + unknown},
		{[]string{"show", "19b16add3a3b"}, 1, "; dibs show --digest 19b16add3a3b finds a key by the digest in a log"},
		{[]string{"show", `"done"`}, 1, "of clients' requests there is\n  " + scope + "done"}, // as the header has it
		{[]string{"forget", unknown, "--yes"}, 1, "; an ID is named by --id " + unknown},
		{[]string{"release", unknown, "--yes"}, 1, "; an ID is named by --id " + unknown},
		{[]string{"resolve", "--help"}, 0, "resolve (KEY | --id ID) (--status N | --text TEXT | --result JSON | --rerun)"},
		{[]string{"forget", "--help"}, 0, "forget KEY ... | --id ID | --glob PATTERN"},
		{[]string{"resolve", "--id", unknown, "--rerun"}, 1, "stdin is not a terminal"},
		{[]string{"resolve", scope + "done", "--rerun", "--yes"}, 1, "is not unknown, it is done"},
		{[]string{"resolve", "nothing", "--rerun", "--yes"}, 1, "the store has no record"},
		{[]string{"resolve", "--id", unknown, "--status", "202", "--body", "-", "--header", "X-A: b", "--yes"}, 0, "retries get 202"},
		{[]string{"resolve", "--id", unknown, "--rerun", "--yes"}, 1, "either"},
		{[]string{"show", scope + "unknown"}, 0, "HTTP 202"},
		{[]string{"forget", scope + "unknown"}, 1, "stdin is not a terminal"},
		{[]string{"forget", scope + "unknown", "abandoned", "nothing", "--yes"}, 1, "the store has no record, holder or waiter of the key nothing"},
		{[]string{"show", scope + "unknown"}, 1, "the store has no record"},
		{[]string{"show", "abandoned"}, 1, "the store has no record"},
		{[]string{"forget", "--key=-v", "--yes"}, 0, "-v is forgotten"},
	}
	for _, step := range steps {
		code, stdout, stderr := call(t, nil, append(step.args, "--store", url)...)
		if step.want == "either" {
			step.want = "" // the wording depends on what is left of the attempt
		}
		if code != step.code || !strings.Contains(stdout+stderr, step.want) {
			t.Errorf("%v: %d %s%s; want %d and %q", step.args, code, stdout, stderr, step.code, step.want)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"*", "", true}, {"*", "abc", true}, {"a*c", "abc", true}, {"a*c", "ac", true}, {"a*c", "abd", false},
		{"a?c", "abc", true}, {"a?c", "ac", false}, {"*b*b*", "abab", true}, {"*bb*", "abab", false}, {"", "", true},
		{"", "a", false}, {"a", "", false}, {"*a", "aaab", false}, {"*ab", "aaab", true}, {"**", "x", true}, {"[a]", "a", false},
	} {
		if got := glob(test.pattern, test.text); got != test.want {
			t.Errorf("glob(%q, %q) = %v", test.pattern, test.text, got)
		}
	}
}

// TestJobsText: the line of a key's jobs tells those that run, those in a worker and those in the
// queue apart. A key without a reserved place has no jobs.
func TestJobsText(t *testing.T) {
	owner := func(host, label string) store.Owner { return store.Owner{Host: host, PID: 42, Label: label} }
	runs := []store.Run{{Owner: owner("a", "mail 109"), Left: time.Second}, {Owner: owner("a", "mail 108"), Left: -time.Second}}
	place := store.PlaceInfo{Reserved: true}
	waits := func(host, label string) store.PlaceInfo { return store.PlaceInfo{Owner: owner(host, label)} }
	for want, e := range map[string]store.Entry{
		"": {Runs: runs, Places: []store.PlaceInfo{waits("a", "echo")}, Waiters: 1},
		"mail 109 runs; mail 110, mail 113 wait in a worker on a; process 42 waits in a worker on b; 27 are in the queue": {
			Runs: runs, Places: []store.PlaceInfo{place, waits("a", "mail 110"), place, waits("b", ""), place, waits("a", "mail 113"), place}, Reserved: 27,
		},
		"1 is in the queue": {Places: []store.PlaceInfo{place}, Reserved: 1},
	} {
		if got := jobsText(e); got != want {
			t.Errorf("%q\nwant %q", got, want)
		}
	}
}

// FuzzCell: a cell shows the whole key, no other key has the same cell, and the cell does
// nothing to a terminal.
func FuzzCell(f *testing.F) {
	for _, s := range []string{"key", "key ", "", `"key"`, `a\nb`, "a\nb", "\xff", "\u202e", "\ufffd", "a  b", "\u00a0", "鍵"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := cell(s)
		for _, r := range got {
			if !unicode.IsPrint(r) {
				t.Errorf("%q is shown with %U in it", s, r)
			}
		}
		if strings.TrimSpace(got) != got || got == "" {
			t.Errorf("%q is shown as %q, which ends out of sight", s, got)
		}
		back := got
		if strings.HasPrefix(got, `"`) {
			var err error
			if back, err = strconv.Unquote(got); err != nil {
				t.Fatalf("%q is shown as %s: %v", s, got, err)
			}
		}
		if back != s {
			t.Errorf("%q is shown as %s, which stands for %q", s, got, back)
		}
	})
}

// TestConfigCheck: config check exits with 0 for a file that the proxy takes. Otherwise it exits
// with 64 and the faults that the proxy finds when it starts.
func TestConfigCheck(t *testing.T) {
	t.Chdir(t.TempDir())
	tests := []struct {
		text string
		want string // the faults; "" for none
	}{
		{"upstream: http://127.0.0.1:3000\nstore: sqlite:/x.db\nlog-format: json\nlog-level: warn\n", ""},
		{"upstream: http://x\nleese: 3s\nstore: mongo://h\n",
			`dibs.yaml:2:1: unknown field "leese"; did you mean "lease"?` + "\n" + `dibs.yaml:3:1: store: not the URL of a store: the scheme "mongo" is unknown`},
		{"listen: :80\n", "upstream: it is missing"},
	}
	for _, test := range tests {
		testkit.Must(t, os.WriteFile("dibs.yaml", []byte(test.text), 0o600))
		code, stdout, stderr := call(t, nil, "config", "check", "dibs.yaml")
		if test.want == "" {
			if code != 0 || stdout != "dibs.yaml: no faults\n" || stderr != "" {
				t.Errorf("%q: %d %q %q; want 0 and no faults", test.text, code, stdout, stderr)
			}
			continue
		}
		if code != 64 || stdout != "" || !strings.HasPrefix(stderr, test.want) || strings.Contains(stderr, "dibs config check") {
			t.Errorf("%q: %d %q %q; want 64 and %q", test.text, code, stdout, stderr, test.want)
		}
		code, stdout, stderr = call(t, nil, "proxy", "--config", "dibs.yaml")
		if code != 64 || stdout != "" || !strings.HasPrefix(stderr, "dibs proxy: "+test.want) {
			t.Errorf("the proxy with %q: %d %q %q; want 64 and %q", test.text, code, stdout, stderr, test.want)
		}
	}
	if code, stdout, stderr := call(t, map[string]string{"DIBS_PROXY_UPSTREAM": "http://x"}, "config", "check", "dibs.yaml"); code != 0 {
		t.Errorf("with the upstream in the environment: %d %q %q; want 0", code, stdout, stderr)
	}
	if left, _ := filepath.Glob("*.db"); len(left) != 0 {
		t.Errorf("there are files now: %v", left)
	}
	for _, args := range []string{"config check", "config check a b", "config chek dibs.yaml", "config check missing.yaml"} {
		if code, stdout, _ := call(t, nil, strings.Fields(args)...); code != 64 || stdout != "" {
			t.Errorf("dibs %s: %d %q; want 64", args, code, stdout)
		}
	}
	if _, _, stderr := call(t, nil, "config", "check", "missing.yaml"); !strings.HasPrefix(stderr, "there is no file missing.yaml; make one: printf 'upstream: http://127.0.0.1:3000") {
		t.Errorf("a file that is not there: %q", stderr)
	}
}
