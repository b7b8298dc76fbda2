//go:build unix

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/httpstore"
)

// A language has a client of dibs serve.
type language struct {
	name, folder string
	interpreter  []string // with its arguments, in which CLIENT is the client's folder
	debian       []string // the interpreter that finds Debian's packages; nil: interpreter
	variables    []string // so, too
	code         []string // the arguments before the text of a program
	tests        string   // the pattern of the files of tests
	file         []string // the arguments before a file of tests
	passed       *regexp.Regexp
	matrix       string // the file with the kill matrix, for nightly
	example      string
	shown        string // what the example prints

	// Programs, whose argument is a key or a ticket. The key of a ticket is "tickets \xff".
	read    string // prints the stored result of a key as JSON, and fails if it runs
	write   string // stores shared under the key, and under "KEY error" the error "declined"
	reserve string // prints the ticket of a place
	redeem  string // prints "held", or "true" if it has the key
}

// languages are the clients.
var languages = []language{{
	name: "Ruby", folder: "../../clients/ruby",
	interpreter: []string{"ruby", "-ICLIENT/lib", "-ICLIENT/test"}, code: []string{"-rdibs", "-e"},
	tests: "test/*_test.rb", passed: regexp.MustCompile(` 0 failures, 0 errors, 0 skips`), matrix: "test/matrix.rb",
	example: "../../examples/ruby/session.rb",
	shown:   "without a lock: 2 sessions\nwith_semaphore_lock: 1 session, 1 request skipped\nonce: 1 session, both requests have it\n",
	read:    `print JSON.generate(Dibs.connect.once(ARGV[0]) { raise "it runs again" })`,
	write: `keys = Dibs.connect
		keys.once(ARGV[0]) { { id: 2**62 + 1, name: "é" } }
		begin; keys.once(ARGV[0] + " error", remember: KeyError) { raise KeyError, "declined" }; rescue KeyError; end`,
	reserve: `print Dibs.connect.reserve("tickets \xff".b)`,
	redeem:  `begin; Dibs.connect.redeem(ARGV[0], wait: 0) { |l| print l.key.bytes == "tickets \xff".bytes }; rescue Dibs::Held; print "held"; end`,
}, {
	name: "Python", folder: "../../clients/python",
	interpreter: []string{"python3"}, debian: []string{"/usr/bin/python3"}, variables: []string{"PYTHONPATH=CLIENT", "PYTHONDONTWRITEBYTECODE=1"}, code: []string{"-c"},
	tests: "tests/test_*.py", passed: regexp.MustCompile(`\nOK\n$`), matrix: "tests/matrix.py",
	example: "../../examples/python/session.py",
	shown:   "without a lock: 2 sessions\nlock: 1 session, 1 request skipped\nonce: 1 session, both requests have it\n",
	read:    "import dibs, json, sys\nprint(json.dumps(dibs.connect().once(sys.argv[1], lambda: 1/0)))",
	write: `import dibs, sys
keys = dibs.connect()
def declined(): raise ValueError("declined")
keys.once(sys.argv[1], lambda: {"id": 2**62 + 1, "name": "é"})
try: keys.once(sys.argv[1] + " error", declined, remember=ValueError)
except ValueError: pass`,
	reserve: `import dibs; print(dibs.connect().reserve(b"tickets \xff"), end="")`,
	redeem: `import dibs, sys
try:
    with dibs.connect().redeem(sys.argv[1], wait=0) as lease: print("true" if lease.key == b"tickets \xff" else lease.key, end="")
except dibs.Held: print("held", end="")`,
}, {
	name: "JavaScript", folder: "../../clients/js",
	interpreter: []string{"node"}, code: []string{"--input-type=module", "-e"},
	tests: "test/*.test.js", file: []string{"--test-reporter=tap"}, matrix: "test/matrix.js",
	passed:  regexp.MustCompile(`(?m)^# pass [1-9]\d*\n# fail 0\n# cancelled 0\n# skipped 0\n# todo 0$`),
	example: "../../examples/js/session.mjs",
	shown:   "without a lock: 2 sessions\nlock: 1 session, 1 request skipped\nonce: 1 session, both requests have it\n",
	read: `import { connect } from "dibs"; const got = await connect().once(process.argv[1], () => { throw new Error("it runs again"); });
		process.stdout.write("{\"id\": " + got.id + ", \"name\": " + JSON.stringify(got.name) + "}");`,
	write: `import { connect } from "dibs"; const keys = connect();
		await keys.once(process.argv[1], () => ({ id: 2n ** 62n + 1n, name: "é" }));
		await keys.once(process.argv[1] + " error", { remember: RangeError }, () => { throw new RangeError("declined"); }).catch(() => {});`,
	reserve: `import { connect } from "dibs"; process.stdout.write(await connect().reserve(Buffer.from("tickets \u00ff", "latin1")));`,
	redeem: `import { connect, HeldError } from "dibs";
		process.stdout.write(await connect().redeem(process.argv[1], { wait: 0 }, (l) => String(l.key.equals(Buffer.from("tickets \u00ff", "latin1"))))
			.catch((e) => e instanceof HeldError ? "held" : String(e)));`,
}}

// run runs the interpreter in the client's folder and returns its output. DIBS_PROGRAM is the
// program.
func (l *language) run(t *testing.T, variables []string, args ...string) string {
	t.Helper()
	client, err := filepath.Abs(l.folder)
	testkit.Must(t, err)
	exe, err := os.Executable()
	testkit.Must(t, err)
	replaced := func(texts []string) (out []string) {
		for _, text := range texts {
			out = append(out, strings.ReplaceAll(text, "CLIENT", client))
		}
		return out
	}
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok { // so that what it said is seen, and what it started ends
		var cancel func()
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-testkit.Limit))
		defer cancel()
	}
	interpreter := replaced(l.interpreter)
	c := exec.CommandContext(ctx, interpreter[0], append(interpreter[1:], args...)...)
	c.Dir = client
	c.Env = append(append(append(os.Environ(), "DIBS_PROGRAM="+exe), replaced(l.variables)...), variables...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it started ends with it
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", l.name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// says runs a program with the client of a server.
func (l *language) says(t *testing.T, server, text string, args ...string) string {
	t.Helper()
	return l.run(t, []string{"DIBS_SERVER=" + server}, append(append(l.code[:len(l.code):len(l.code)], text), args...)...)
}

// test runs a file of tests.
func (l *language) test(t *testing.T, file string, variables ...string) {
	t.Helper()
	if l.debian != nil && packaged.MatchString(filepath.Base(file)) {
		with := *l
		with.interpreter = l.debian
		l = &with
	}
	if out := l.run(t, variables, append(l.file[:len(l.file):len(l.file)], file)...); !l.passed.MatchString(out) {
		t.Error(out)
	}
}

// packaged are the files of tests that need packages of Debian.
var packaged = regexp.MustCompile(`transaction|send|package`)

// short are the clients' files of tests that the gate runs. The nightly tests run all.
var short = regexp.MustCompile(`^(test_)?(lock|once|readme|table)[_.]`)

// prepare installs what only the nightly tests need.
var prepare = func() error { return nil }

// TestLanguages runs the tests of the clients, which start the program themselves.
func TestLanguages(t *testing.T) {
	t.Parallel()
	testkit.Must(t, prepare())
	for _, l := range languages {
		files, err := filepath.Glob(filepath.Join(l.folder, l.tests))
		files = slices.DeleteFunc(files, func(file string) bool { return !short.MatchString(filepath.Base(file)) })
		if err != nil || len(files) < 4 {
			t.Fatalf("the tests in %s are %q, %v", l.folder, files, err)
		}
		for _, file := range files {
			t.Run(l.name+"/"+filepath.Base(file), func(t *testing.T) {
				t.Parallel()
				l := l
				var variables []string
				if strings.Contains(filepath.Base(file), "transaction") {
					variables = []string{"DIBS_DATABASE=" + migrated(t, servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true}).URL())}
				}
				l.test(t, filepath.Join(filepath.Dir(l.tests), filepath.Base(file)), variables...)
			})
		}
	}
}

// TestLanguagesExamples runs the examples, which show the fault and then the cure.
func TestLanguagesExamples(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		example, err := filepath.Abs(l.example)
		testkit.Must(t, err)
		if got := l.run(t, []string{"DIBS_SERVER=" + startServe(t)}, example); got != l.shown {
			t.Errorf("%s got\n%swant\n%s", l.name, got, l.shown)
		}
	}
}

// TestComingFromCode: the jobs of docs/guides/coming-from.md print what the page shows.
func TestComingFromCode(t *testing.T) {
	t.Parallel()
	page := testkit.ReadFile(t, "../../docs/guides/coming-from.md")
	for i, fence := range []string{"rb", "py", "js"} {
		found := regexp.MustCompile("(?ms)^```" + fence + "\n(.*?)^```\n\n```text\n(.*?)^```$").FindSubmatch(page)
		if found == nil {
			t.Fatalf("the page has no %s", fence)
		}
		if got := languages[i].says(t, startServe(t), string(found[1])); got != string(found[2]) {
			t.Errorf("%s prints\n%s\nthe page shows\n%s", languages[i].name, got, found[2])
		}
	}
}

// TestLanguagesShareResults: each language and Go read what each of them has stored.
func TestLanguagesShareResults(t *testing.T) {
	t.Parallel()
	url := startServe(t)
	client := serveClient(t, url)
	type receipt struct {
		ID   int64  `json:"id"` // more digits than a number of JavaScript has
		Name string `json:"name"`
	}
	shared := receipt{1<<62 + 1, "é"}
	once := func(key string, fn func(context.Context) (receipt, error)) (receipt, error) {
		return dibs.Once(t.Context(), client, key, nil, fn)
	}
	_, err := once("Go", func(context.Context) (receipt, error) { return shared, nil })
	testkit.Must(t, err)
	writers := []string{"Go"}
	for _, l := range languages {
		l.says(t, url, l.write, l.name)
		writers = append(writers, l.name)
		again := func(context.Context) (r receipt, err error) {
			t.Errorf("what %s stored runs again", l.name)
			return r, nil
		}
		if got, err := once(l.name, again); err != nil || got != shared {
			t.Errorf("Go got %v, %v from %s", got, err, l.name)
		}
		if _, err := once(l.name+" error", again); err == nil || err.Error() != "declined" {
			t.Errorf("Go got the error %v from %s", err, l.name)
		}
	}
	for _, l := range languages {
		for _, writer := range writers {
			var got receipt
			out := l.says(t, url, l.read, writer)
			if err := json.Unmarshal([]byte(out), &got); err != nil || got != shared {
				t.Errorf("%s got %s from %s, %v", l.name, out, writer, err)
			}
		}
	}
}

// TestLanguagesShareTickets: each language and Go redeem each other's tickets, at their places.
func TestLanguagesShareTickets(t *testing.T) {
	t.Parallel()
	const key = "tickets \xff"
	for _, l := range languages {
		url := startServe(t)
		client := serveClient(t, url)
		text := l.says(t, url, l.reserve)
		var first dibs.Place
		if err := first.UnmarshalText([]byte(text)); err != nil || first.Key != client.Key(key) {
			t.Fatalf("%s: %q is the place of %v, %v", l.name, text, first.Key, err)
		}
		second, _, err := client.Reserve(t.Context(), key, time.Hour, nil)
		testkit.Must(t, err)
		ticket, err := second.MarshalText()
		testkit.Must(t, err)
		if got := l.says(t, url, l.redeem, string(ticket)); got != "held" {
			t.Errorf("%s says %q of the second place", l.name, got)
		}
		lease, err := client.Redeem(t.Context(), first, nil)
		testkit.Must(t, err)
		testkit.Must(t, lease.Release())
		if got := l.says(t, url, l.redeem, string(ticket)); got != "true" {
			t.Errorf("%s says %q of the second place after the first", l.name, got)
		}
	}
}

// startServe starts dibs serve on a Unix socket over a SQLite file, and returns its URL.
func startServe(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dibs") // short, because the path of a socket must be
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	serveAt(t, "sqlite:"+dir+"/dibs.db", dir+"/s")
	return "http+unix:" + dir + "/s"
}

// serveAt starts dibs serve on a Unix socket over a store.
func serveAt(t *testing.T, store, socket string, flags ...string) *process {
	t.Helper()
	p := start(t, append([]string{"serve", "--store", store, "--listen", "unix:" + socket}, flags...)...)
	testkit.Eventually(t, "the server listens", func() bool {
		select {
		case <-p.done:
			t.Fatal("the server ended")
		default:
		}
		return strings.Contains(p.stderr.String()+p.stdout.String(), "listening on")
	})
	return p
}

// serveClient returns a client of dibs serve, which ends with the test.
func serveClient(t *testing.T, url string) *dibs.Client {
	t.Helper()
	store, err := httpstore.Open(url, nil)
	testkit.Must(t, err)
	client, err := dibs.New(store, nil)
	testkit.Must(t, err)
	t.Cleanup(func() {
		client.Close()
		store.Close()
	})
	return client
}
