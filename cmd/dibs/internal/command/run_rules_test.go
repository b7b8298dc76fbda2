//go:build unix

package command_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestRunOncePer: only a success within the time of --once-per counts.
func TestRunOncePer(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunOncePer)
}

func checkRunOncePer(t *testing.T, b *bench) {
	t.Parallel()
	steps := []struct {
		name    string
		flags   []string
		command string
		code    int
		ran     bool
		says    string
	}{
		{"a failure", []string{"--once-per=1h"}, "exit 3", 3, true, ""},
		{"after a failure", []string{"--once-per=1h"}, "exit 0", 0, true, ""},
		{"after a success", []string{"--once-per=1h"}, "exit 0", 0, false, "succeeded"},
		{"skipping", []string{"--once-per=1h", "--skip"}, "exit 0", 0, false, "succeeded"},
		{"longer ago than it says", []string{"--once-per=1ms"}, "exit 0", 0, true, "and --once-per is 1ms: another run can begin now"},
		{"the older record still counts", []string{"--once-per=1h"}, "exit 0", 0, false, "succeeded"},
		{"said quietly", []string{"--once-per=1h", "--quiet"}, "exit 0", 0, false, ""},
		{"without once", nil, "exit 4", 4, true, ""},
		{"the record is unharmed", []string{"--once-per=1h"}, "exit 0", 0, false, "which is within 1h0m0s: nothing to do"},
		{"longer than its period", []string{"--once-per=100ms", "--key=p"}, "sleep 0.2", 0, true, `"p" took `},
		{"and so the next one runs", []string{"--once-per=1h", "--key=p"}, "exit 0", 0, true, ""},
		{"longer than its period, from its end", []string{"--once-per=1h", "--once-per-from=end", "--key=e"}, "sleep 0.2", 0, true, ""},
		{"from its end", []string{"--once-per=1h", "--once-per-from=end", "--key=e"}, "exit 0", 0, false, "succeeded"},
		{"a failure that counts", []string{"--once-per=1h", "--once-per-failed", "--key=f"}, "exit 3", 3, true, ""},
		{"failures count if asked for", []string{"--once-per=1h", "--once-per-failed", "--key=f"}, "exit 0", 0, false, "failed with 3"},
		{"and does not count for others", []string{"--once-per=1h", "--key=f"}, "exit 0", 0, true, ""},
		{"another key", []string{"--once-per=1h", "--key=l"}, "exit 0", 0, true, ""},
		{"another namespace", []string{"--once-per=1h", "--namespace=n"}, "exit 0", 0, true, ""},
	}
	for _, step := range steps {
		before := len(b.lines("ran"))
		args := append([]string{"run"}, step.flags...)
		if !strings.Contains(strings.Join(step.flags, " "), "--key") {
			args = append(args, "k")
		}
		code, _, stderr := b.run(t, append(args, "--", "sh", "-c", "echo x >> ran; "+step.command)...)
		ran := len(b.lines("ran")) > before
		if code != step.code || ran != step.ran || !strings.Contains(stderr, step.says) || step.says == "" && stderr != "" {
			t.Errorf("%s: %d, ran %v, %q", step.name, code, ran, stderr)
		}
	}
	if code, _, stderr := b.run(t, "forget", "--yes", "k"); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, _ := b.run(t, "run", "--once-per=1h", "k", "--", "sh", "-c", "exit 5"); code != 5 {
		t.Errorf("after forget it exited with %d", code)
	}
}

// TestRunOncePerMeanwhile: a second run waits for the outcome of the first, and runs if that
// failed. With --skip it does not wait.
func TestRunOncePerMeanwhile(t *testing.T) {
	t.Parallel()
	for _, k := range shared {
		t.Run(k.name, func(t *testing.T) { checkRunOncePerMeanwhile(t, k.fresh) })
	}
}

func checkRunOncePerMeanwhile(t *testing.T, fresh func(*testing.T) *bench) {
	for name, test := range map[string]struct {
		first string
		ran   int
	}{
		"success": {"exit 0", 1},
		"failure": {"exit 1", 2},
		"killed":  {"kill -KILL $$", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := fresh(t)
			first := b.start(t, "run", "--lease=1h", "--once-per=1h", "k", "--", "sh", "-c", "echo x >> ran; while ! test -e go; do sleep 0.01; done; "+test.first)
			testkit.Eventually(t, "the first", func() bool { return b.read("ran") != "" })
			waiter := b.start(t, "run", "--once-per=1h", "k", "--", "sh", "-c", "echo x >> ran")
			s := b.inspector(t)
			testkit.Eventually(t, "the waiter", func() bool { return entry(t, s, "k").Waiters == 1 })
			if code, _, stderr := b.run(t, "run", "--once-per=1h", "--skip", "k", "--", "true"); code != 75 {
				t.Errorf("--skip: %d, %q", code, stderr)
			}
			b.write(t, "go", "")
			first.code(t)
			if code := waiter.code(t); code != 0 {
				t.Errorf("the waiter exited with %d, %q", code, waiter.stderr.String())
			}
			if ran := len(b.lines("ran")); ran != test.ran {
				t.Errorf("it ran %d times; want %d", ran, test.ran)
			}
		})
	}
}

// TestRunNested: dibs run refuses a key that an outer dibs run holds. Other keys may nest.
func TestRunNested(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.write(t, "dibs", "#!/bin/sh\nexec "+binary+" \"$@\"\n")
	for name, test := range map[string]struct {
		args string
		code int
	}{
		"A in A":                         {"run A -- BIN run A -- true", 64},
		"A in A, skipping":               {"run A -- BIN run --skip A -- true", 64},
		"A in B in A":                    {"run A -- BIN run B -- BIN run A -- true", 64},
		"A in C in B in A":               {"run A -- BIN run B -- BIN run C -- BIN run A -- true", 64},
		"A in A in the same namespace":   {"run --namespace n A -- BIN run --namespace n A -- true", 64},
		"A in A of another namespace":    {"run A -- BIN run --namespace n A -- true", 0},
		"A of another in B in A":         {"run A -- BIN run B -- BIN run --namespace n A -- true", 0},
		"B in A":                         {"run A -- BIN run B -- true", 0},
		"C in B in A":                    {"run A -- BIN run B -- BIN run C -- sh -c true", 0},
		"one of two permits in another":  {"run --permits 2 A -- BIN run --permits 2 A -- true", 64},
		"A after A in the same parent's": {"run P -- sh -c", 0},
	} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(strings.ReplaceAll(test.args, "BIN", binary))
			if strings.HasSuffix(test.args, "sh -c") {
				args = append(args, binary+" run A -- true && "+binary+" run A -- true")
			}
			code, _, stderr := b.run(t, args...)
			if code != test.code || test.code == 64 && !strings.Contains(stderr, "waiting for it would never end") {
				t.Errorf("%d, %q; want %d", code, stderr, test.code)
			}
		})
	}
	code, _, stderr := b.run(t, "run", "--namespace=n", "A", "--", binary, "run", "--namespace=n", "A", "--", "true")
	if want := `the key "A" in the namespace "n" of the store ` + b.store + " is held by "; code != 64 || !strings.Contains(stderr, want) {
		t.Errorf("%d, %q; want %q", code, stderr, want)
	}
	s := b.inspector(t)
	for _, key := range []string{"A", "B", "C", "P"} {
		if e := entry(t, s, key); e.Condition != "" {
			t.Errorf("left behind: %+v", e)
		}
	}
}

// TestRunNestedInAnotherStore: a key of one store does not refuse the same key of another one. A
// store is recognized under another URL, too.
func TestRunNestedInAnotherStore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	testkit.Must(t, os.Symlink(b.path("dibs.db"), b.path("link.db")))
	redis := newRedisBench(t).store
	server := strings.TrimSuffix(redis, "/0")
	// A server of the file, and one whose credential may not list keys.
	open, closed := servertest.Addr(t), servertest.Addr(t)
	b.write(t, "tokens", fmt.Sprintf("shop %x shop use\n", sha256.Sum256([]byte(secret))))
	b.start(t, "serve", "--listen", open).awaitListening(t)
	b.start(t, "serve", "--listen", closed, "--tokens", "tokens").awaitListening(t)
	stores := strings.NewReplacer("FILE", b.store, "LINK", "sqlite:"+b.path("link.db"), "UNSHARED", b.store+"?shared=false", "OTHER", "sqlite:"+b.path("other.db"),
		"REDIS", redis, "LOCALHOST", strings.Replace(server, "127.0.0.1", "localhost", 1), "SECOND", server+"/1", "SERVED", "http://"+open, "CLOSED", "http://:"+secret+"@"+closed)
	for test, code := range map[string]int{
		"A of FILE -- A of OTHER":               0,
		"A of FILE -- A of OTHER -- A of FILE":  64,
		"A of FILE -- A of OTHER -- A of OTHER": 64,
		"A of FILE -- A of LINK":                64,
		"A of LINK -- A of OTHER -- A of FILE":  64,
		"A of FILE -- A of UNSHARED":            64,
		"A of FILE -- B of LINK":                0,
		"A of FILE -- A of REDIS":               0,
		"A of REDIS -- A of LOCALHOST":          64,
		"A of LOCALHOST -- A of REDIS":          64,
		"A of REDIS -- A of SECOND":             0,
		"A of FILE -- A of SERVED":              64,
		"A of SERVED -- A of FILE":              64,
		"A of CLOSED -- A of CLOSED":            64,
		"A of CLOSED -- A of FILE":              0,
	} {
		t.Run(test, func(t *testing.T) {
			var args []string
			for i, run := range strings.Split(test, " -- ") {
				key, url, _ := strings.Cut(run, " of ")
				if i > 0 {
					args = append(args, binary)
				}
				args = append(args, "run", "--skip", "--store", stores.Replace(url), key, "--")
			}
			got, _, stderr := b.run(t, append(args, "touch", "ran")...)
			if got != code || code == 64 != strings.Contains(stderr, "waiting for it would never end") || code == 64 == b.exists("ran") {
				t.Errorf("%d, %q; want %d", got, stderr, code)
			}
			_ = os.Remove(b.path("ran"))
		})
	}
}

// oddKeys look alike, or look like something else.
var oddKeys = []string{
	"key", "Key", "KEY", "key ", " key", "key\t", "key\n", "ke y", "ke  y", "\nkey", "key\r",
	`"key"`, `'key'`, "`key`", "$key", "$(touch ran)", "key;touch ran", "%s", "%key", `key\n`, `\`, "*", "k?y", "k*", "[key]",
	"../..", "../../etc/passwd", "/", ".", "..", "a/b", "-", "-k", "--", "--skip", "--key=x", "urn:dibs:claim:abcdefghijklmnop",
	"\x1b[31mkey", "\u202eyek", "\u200bkey", "key\u00a0", "\u00e9", "e\u0301", "ключ", "鍵", "🔑", "ß", "ss", "İ", "i",
	"\xff", "\xfe\xff", "k\xc3", "\x7f", "\x01", "\ufffd", "\ufeffkey",
	strings.Repeat("k", 511), strings.Repeat("k", 512), strings.Repeat("\xff", 512), strings.Repeat("鍵", 170) + "ab",
	"null", "NULL", "0", "true", "'; DROP TABLE lease; --",
}

// TestRunOddKeys: each odd key is its own key: a run under one does not count for another.
func TestRunOddKeys(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunOddKeys)
}

func checkRunOddKeys(t *testing.T, b *bench) {
	t.Parallel()
	for i, key := range oddKeys {
		written := fmt.Sprint("written.", i)
		code, _, stderr := b.run(t, "run", "--once-per=1h", "--key="+key, "--", "sh", "-c", `printf %s "$DIBS_KEY" > "$0"`, written)
		if code != 0 || stderr != "" || b.read(written) != key {
			t.Errorf("%q: %d, %s; the command got %q", key, code, stderr, b.read(written))
		}
	}
	code, stdout, stderr := b.run(t, "ls", "--state", "done", "--json")
	if code != 0 {
		t.Fatal(stderr)
	}
	found := map[string]bool{}
	for line := range strings.Lines(stdout) {
		var e struct {
			Key    *string `json:"key"`
			Base64 []byte  `json:"key_base64"`
			State  string
		}
		testkit.Must(t, json.Unmarshal([]byte(line), &e))
		name := string(e.Base64)
		if e.Key != nil {
			name = *e.Key
		}
		if e.State != "done" || found[name] {
			t.Errorf("%q is %s, or there twice", name, e.State)
		}
		found[name] = true
	}
	for _, key := range oddKeys {
		if !found[key] {
			t.Errorf("ls --json does not list %q", key)
		}
	}
	_, table, _ := b.run(t, "ls", "--state", "done")
	if lines := strings.Count(table, "\n"); lines != len(oddKeys)+1 {
		t.Errorf("ls prints %d lines for %d keys", lines, len(oddKeys))
	}
	for _, r := range table {
		if r != '\n' && (r < ' ' || r == 0x7f || r == '\u202e' || r == '\u200b' || r == '\u00a0' || r == '\ufeff') {
			t.Errorf("ls prints the character %U", r)
		}
	}
	seen := map[string]bool{}
	for line := range strings.Lines(table) {
		name, _, _ := strings.Cut(line, "  done")
		if name = strings.TrimRight(name, " "); seen[name] {
			t.Errorf("two keys are shown as %s", name)
		}
		seen[name] = true
	}
	if b.exists("ran") {
		t.Error("a key was executed")
	}
}

// addOne is a critical section that would lose updates. It notices a second process inside,
// and records the order.
const addOne = `mkdir inside || echo "$1" >> overlaps
n=$(cat count)
echo $((n + 1)) > count
echo "$1" >> order
echo "$DIBS_FENCE" >> fences
rmdir inside`

// section starts a run of addOne.
func (b *bench) section(t *testing.T, name string, flags ...string) *program {
	t.Helper()
	return b.start(t, append(append([]string{"run"}, flags...), "sum", "--", "sh", "-c", addOne, "sh", name)...)
}

// checkSum checks what n sections left behind.
func (b *bench) checkSum(t *testing.T, n int) {
	t.Helper()
	if count := number(t, b.read("count")); count != uint64(n) {
		t.Errorf("the sum is %d; want %d", count, n)
	}
	if two := b.lines("overlaps"); len(two) > 0 {
		t.Errorf("two were inside at once: %v", two)
	}
	var fences []uint64
	for _, line := range b.lines("fences") {
		fences = append(fences, number(t, line))
	}
	if len(fences) != n || !slices.IsSorted(fences) || len(slices.Compact(fences)) != n {
		t.Errorf("%d fences, which do not rise: %v", len(fences), fences)
	}
	if e := entry(t, b.inspector(t), "sum"); e.Condition != "" {
		t.Errorf("left behind: %+v", e)
	}
}

// TestRunFew: a few processes at once each add one to a number in a file. The sum is right,
// and no two are inside at once. The nightly tests start a hundred.
func TestRunFew(t *testing.T) {
	t.Parallel()
	checkRunMany(t, newBench(t), 6)
}

func checkRunMany(t *testing.T, b *bench, many int) {
	t.Helper()
	b.write(t, "count", "0")
	all := make([]*program, many)
	for i := range all {
		all[i] = b.section(t, strconv.Itoa(i))
	}
	for i, p := range all {
		if code := p.code(t); code != 0 {
			t.Fatalf("process %d exited with %d: %s", i, code, p.stderr.String())
		}
	}
	b.checkSum(t, many)
}

// TestRunPermits: as many processes are inside at once as there are permits. A run with
// another number waits.
func TestRunPermits(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunPermits)
}

func checkRunPermits(t *testing.T, b *bench) {
	t.Parallel()
	const permits = 3
	var all []*program
	for i := range 2 * permits {
		all = append(all, b.start(t, "run", "--permits=3", "k", "--", "sh", "-c", fmt.Sprintf("echo %d >> in; while ! test -e go; do sleep 0.01; done; echo >> out", i)))
	}
	s := b.inspector(t)
	testkit.Eventually(t, "holders and waiters", func() bool {
		e := entry(t, s, "k")
		return len(e.Runs) == permits && e.Waiters == permits && len(b.lines("in")) == permits
	})
	for _, c := range []struct{ flag, says string }{
		{"--skip", `the key "k" is busy`}, {"--wait=100ms", `the key "k" is still busy after 100ms`},
	} {
		if code, _, stderr := b.run(t, "run", "--permits=2", c.flag, "k", "--", "touch", "ran"); code != 75 || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: %d, %q", c.flag, code, stderr)
		}
	}
	// Runs with another number wait until all have released the key.
	waits := []*program{
		b.start(t, "run", "--permits=1", "k", "--", "sh", "-c", "echo ran >> others"),
		b.start(t, "run", "--permits=2", "--wait=1m", "k", "--", "sh", "-c", "echo ran >> others"),
	}
	if code, stdout, _ := b.run(t, "ls"); code != 0 || strings.Count(stdout, "\nk ") != permits {
		t.Errorf("ls: %d\n%s", code, stdout)
	}
	if n := len(b.lines("in")); n != permits {
		t.Errorf("%d are inside", n)
	}
	b.write(t, "go", "")
	for _, p := range append(all, waits...) {
		if code := p.code(t); code != 0 {
			t.Errorf("%d, %s", code, p.stderr.String())
		}
	}
	if n, others := len(b.lines("in")), len(b.lines("others")); n != 2*permits || others != 2 {
		t.Errorf("%d ran, and %d with another number", n, others)
	}
}
