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
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// rubyClient is the folder of the client for Ruby.
const rubyClient = "../../clients/ruby"

// ruby runs Ruby with the client and returns its output. DIBS_PROGRAM is the program.
func ruby(t *testing.T, variables []string, args ...string) string {
	t.Helper()
	client, err := filepath.Abs(rubyClient)
	testkit.Must(t, err)
	exe, err := os.Executable()
	testkit.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*testkit.Limit)
	defer cancel()
	c := exec.CommandContext(ctx, "ruby", append([]string{"-I" + client + "/lib", "-I" + client + "/test"}, args...)...)
	c.Dir = client
	c.Env = append(append(os.Environ(), "DIBS_PROGRAM="+exe), variables...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it started ends with it
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatalf("ruby %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
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
func serveAt(t *testing.T, store, socket string) *process {
	t.Helper()
	p := start(t, "serve", "--store", store, "--listen", "unix:"+socket)
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

// TestRubyClient runs the tests of the client for Ruby, which start the program themselves.
func TestRubyClient(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(rubyClient + "/test/*_test.rb")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", rubyClient, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			var variables []string
			if strings.HasSuffix(file, "/transaction_test.rb") {
				variables = []string{"DIBS_DATABASE=" + servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true}).URL()}
			}
			out := ruby(t, variables, "test/"+filepath.Base(file))
			if !strings.Contains(out, " 0 failures, 0 errors, 0 skips") {
				t.Error(out)
			}
		})
	}
}

// TestRubyStories runs the two stories: equal requests that create one session, and webhooks
// and jobs of one conversation.
func TestRubyStories(t *testing.T) {
	t.Parallel()
	url := startServe(t)
	for _, story := range []string{"story_semaphore_spec.rb", "story_job_spec.rb"} {
		out := ruby(t, []string{"DIBS_SERVER=" + url}, "test/"+story)
		if strings.Contains(out, "FAIL") || strings.Count(out, "ok   ") < 5 {
			t.Errorf("%s:\n%s", story, out)
		}
	}
}

// TestRubyExample runs the example, which shows the fault and then the cure.
func TestRubyExample(t *testing.T) {
	t.Parallel()
	example, err := filepath.Abs("../../examples/ruby/session.rb")
	testkit.Must(t, err)
	const want = "without a lock: 2 sessions\nwith_semaphore_lock: 1 session, 1 request skipped\nonce: 1 session, both requests have it\n"
	if got := ruby(t, []string{"DIBS_SERVER=" + startServe(t)}, example); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestRubyAndGoShare: each reads the other's results and redeems the other's tickets.
func TestRubyAndGoShare(t *testing.T) {
	t.Parallel()
	url := startServe(t)
	server := []string{"DIBS_SERVER=" + url}
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
	out := ruby(t, server, "-rdibs", "-e", `print JSON.generate(Dibs.connect.once("of Go") { raise "it runs again" })`)
	if err := json.Unmarshal([]byte(out), &got); err != nil || got != fromGo {
		t.Errorf("Ruby got %s, %v", out, err)
	}
	ruby(t, server, "-rdibs", "-e", `Dibs.connect.once("of Ruby") { { id: 18, name: "é" } }
		begin; Dibs.connect.once("error", remember: KeyError) { raise KeyError, "declined" }; rescue KeyError; end`)
	if got, err := dibs.Once(ctx, client, "of Ruby", nil, func(context.Context) (receipt, error) {
		t.Error("it runs again")
		return receipt{}, nil
	}); err != nil || got != (receipt{18, "é"}) {
		t.Errorf("Go got %v, %v", got, err)
	}
	if _, err := dibs.Once(ctx, client, "error", nil, func(context.Context) (int, error) { return 1, nil }); err == nil || err.Error() != "declined" {
		t.Errorf("Go got the error %v", err)
	}

	// The place of Ruby is in front of that of Go.
	key := "tickets \xff"
	text := ruby(t, server, "-rdibs", "-e", `print Dibs.connect.reserve("tickets \xff".b)`)
	var ofRuby dibs.Place
	if err := ofRuby.UnmarshalText([]byte(text)); err != nil || ofRuby.Key != client.Key(key) {
		t.Fatalf("%q is the place of %v, %v", text, ofRuby.Key, err)
	}
	ofGo, _, err := client.Reserve(ctx, key, time.Hour, nil)
	testkit.Must(t, err)
	ticket, err := ofGo.MarshalText()
	testkit.Must(t, err)
	redeem := `begin; Dibs.connect.redeem(ARGV[0], wait: 0) { |l| print l.key.bytes == "tickets \xff".bytes }; rescue Dibs::Held; print "held"; end`
	if got := ruby(t, server, "-rdibs", "-e", redeem, string(ticket)); got != "held" {
		t.Errorf("the second place: %s", got)
	}
	lease, err := client.Redeem(ctx, ofRuby, nil)
	testkit.Must(t, err)
	testkit.Must(t, lease.Release())
	if got := ruby(t, server, "-rdibs", "-e", redeem, string(ticket)); got != "true" {
		t.Errorf("the second place after the first: %s", got)
	}
}
