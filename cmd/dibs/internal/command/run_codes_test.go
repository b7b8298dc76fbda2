//go:build unix

package command_test

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestRunCodes: dibs run ends with the command's exit code.
func TestRunCodes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.write(t, "plain", "#!/bin/sh\n")
	tests := map[string]struct {
		command []string
		code    int
		says    string
	}{
		"success":            {[]string{"true"}, 0, ""},
		"failure":            {[]string{"sh", "-c", "exit 3"}, 3, ""},
		"the largest":        {[]string{"sh", "-c", "exit 255"}, 255, ""},
		"as ours":            {[]string{"sh", "-c", "exit 75"}, 75, ""},
		"killed":             {[]string{"sh", "-c", "kill -KILL $$"}, 137, ""},
		"ended":              {[]string{"sh", "-c", "kill -TERM $$"}, 143, ""},
		"not found":          {[]string{"no-such-command"}, 127, "dibs run: no-such-command: command not found\n"},
		"no such file":       {[]string{"./no-such-file"}, 127, "dibs run: ./no-such-file: command not found\n"},
		"one word":           {[]string{"echo hello"}, 127, "dibs run: echo hello: command not found, because all of this is one word: leave out the quotes, or write sh -c"},
		"not executable":     {[]string{"./plain"}, 126, "dibs run: ./plain: cannot be executed: "},
		"a folder":           {[]string{"/"}, 126, "dibs run: /: cannot be executed: "},
		"flags are its own":  {[]string{"sh", "-c", `test "$1" = --skip`, "sh", "--skip"}, 0, ""},
		"a second -- too":    {[]string{"sh", "-c", `test "$1" = --`, "sh", "--"}, 0, ""},
		"what runs is known": {[]string{"sh", "-c", `test "$DIBS_KEY" = k && test "$DIBS_FENCE" -gt 0`}, 0, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := b.run(t, append([]string{"run", "k", "--"}, test.command...)...)
			if code != test.code || stdout != "" || !strings.HasPrefix(stderr, test.says) || test.says == "" && stderr != "" {
				t.Errorf("%d, %q, %q; want %d, %q", code, stdout, stderr, test.code, test.says)
			}
		})
	}
	if e := entry(t, b.inspector(t), "k"); e.Condition != "" {
		t.Errorf("left behind: %+v", e)
	}
}

// TestRunPassesStreams: the command has the standard streams of the program.
func TestRunPassesStreams(t *testing.T) {
	b := newBench(t)
	p := b.command("run", "k", "--", "sh", "-c", "cat; echo bad >&2")
	p.Stdin = strings.NewReader("good")
	p.begin(t)
	if code := p.code(t); code != 0 || p.stdout.String() != "good" || p.stderr.String() != "bad\n" {
		t.Errorf("%d, %q, %q", code, p.stdout.String(), p.stderr.String())
	}
}

// TestRunUsage: contradicting arguments are refused with the reason. Nothing is run or created.
func TestRunUsage(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		says string
	}{
		"nothing":              {nil, "the key and the command are missing"},
		"no key":               {[]string{"--", "touch", "ran"}, "the key is missing"},
		"no command":           {[]string{"k"}, "the command is missing"},
		"an empty command":     {[]string{"k", "--"}, "the command is missing"},
		"a command of nothing": {[]string{"k", "--", ""}, "the command is missing"},
		"no dashes":            {[]string{"k", "touch", "ran"}, "after the key comes --"},
		"flags behind the key": {[]string{"k", "--skip", "--", "touch", "ran"}, "flags come before the key"},
		"an empty key":         {[]string{"", "--", "touch", "ran"}, "the key is empty"},
		"a long key":           {[]string{strings.Repeat("k", 513), "--", "touch", "ran"}, "the key has 513 bytes"},
		"two keys":             {[]string{"--key=k", "l", "--", "touch", "ran"}, "the key was given with --key"},
		"an unknown flag":      {[]string{"--frob", "k", "--", "touch", "ran"}, "unknown flag: --frob"},
		"a short lease":        {[]string{"--lease=999ms", "k", "--", "touch", "ran"}, "lease: 999ms is too short"},
		"not a duration":       {[]string{"--lease=fast", "k", "--", "touch", "ran"}, "--lease"},
		"a negative wait":      {[]string{"--wait=-1s", "k", "--", "touch", "ran"}, "wait: -1s is negative"},
		"skip and wait":        {[]string{"--skip", "--wait=1s", "k", "--", "touch", "ran"}, "--skip: it cannot be used together with --wait"},
		"no permits":           {[]string{"--permits=0", "k", "--", "touch", "ran"}, "permits: 0 is out of range"},
		"once per nothing":     {[]string{"--once-per=0s", "k", "--", "touch", "ran"}, "once-per: 0s is too short"},
		"once in a bucket":     {[]string{"--store=s3://locks", "--once-per=1h", "k", "--", "touch", "ran"}, "let the command look"},
		"once and permits":     {[]string{"--once-per=1h", "--permits=2", "k", "--", "touch", "ran"}, "once-per: it cannot be used together with --permits"},
		"memory":               {[]string{"--store=memory:", "k", "--", "touch", "ran"}, "excludes no other process"},
		"no scheme":            {[]string{"--store=dibs.db", "k", "--", "touch", "ran"}, "has no scheme"},
		"an unknown scheme":    {[]string{"--store=fax:123", "k", "--", "touch", "ran"}, "is not a scheme of a store"},
		"a bad namespace":      {[]string{"--namespace=a b", "k", "--", "touch", "ran"}, "the namespace"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			code, stdout, stderr := b.run(t, append([]string{"run"}, test.args...)...)
			if code != 64 || stdout != "" || !strings.Contains(stderr, test.says) || !strings.Contains(stderr, "Try 'dibs run --help'.") {
				t.Errorf("%d, %q, %q; want 64, %q", code, stdout, stderr, test.says)
			}
			if made, err := os.ReadDir(b.dir); err != nil || len(made) > 0 {
				t.Errorf("it made %v, %v", made, err)
			}
		})
	}
}

// TestRunUnusableStore: a file that is not a store is reported and not changed. Nothing is run.
func TestRunUnusableStore(t *testing.T) {
	tests := map[string]struct {
		put  func(t *testing.T, path string)
		says string
	}{
		"a folder": {func(t *testing.T, path string) { testkit.Must(t, os.Mkdir(path, 0o755)) }, "it is a folder"},
		"a text": {func(t *testing.T, path string) {
			testkit.Must(t, os.WriteFile(path, []byte("Dear diary, "+strings.Repeat("today ", 400)), 0o644))
		}, "not a store"},
		"a short text":   {func(t *testing.T, path string) { testkit.Must(t, os.WriteFile(path, []byte("no"), 0o644)) }, "not a store"},
		"a damaged one":  {damage, "damaged"},
		"a socket":       {func(t *testing.T, path string) { listen(t, path) }, "not a regular file"},
		"its folder too": {func(t *testing.T, path string) { testkit.Must(t, os.Remove(filepath.Dir(path))) }, "its folder does not exist"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			dir := b.path("place")
			testkit.Must(t, os.Mkdir(dir, 0o755))
			path := filepath.Join(dir, "dibs.db")
			test.put(t, path)
			before := tree(t, b.dir)
			code, stdout, stderr := b.run(t, "run", "--store", "sqlite:"+path, "k", "--", "touch", "ran")
			if code != 69 || stdout != "" || !strings.Contains(stderr, test.says) || !strings.Contains(stderr, path) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("%d, %q, %q; want 69, one line, %q", code, stdout, stderr, test.says)
			}
			if after := tree(t, b.dir); after != before {
				t.Errorf("it changed the folder from\n%s to\n%s", before, after)
			}
		})
	}
}

// listen leaves a socket behind.
func listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	testkit.Must(t, err)
	t.Cleanup(func() { l.Close() })
}

// damage leaves a store behind in which a page is something else.
func damage(t *testing.T, path string) {
	t.Helper()
	b := &bench{dir: t.TempDir(), store: "sqlite:" + path}
	if code, _, stderr := b.run(t, "run", "k", "--", "true"); code != 0 {
		t.Fatal(stderr)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	testkit.Must(t, err)
	for page := int64(1); page < 8; page++ {
		_, err = f.WriteAt([]byte(strings.Repeat("\xa5", 4096)), page*4096)
		testkit.Must(t, err)
	}
	testkit.Must(t, f.Close())
}

// TestRunUnwritableStore: a file or folder without write permission is reported. For root
// the program runs as the user nobody, because root may write everything.
func TestRunUnwritableStore(t *testing.T) {
	// Not t.TempDir, because the user nobody cannot open it.
	dir, err := os.MkdirTemp("", "dibs-run-*")
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, os.RemoveAll(dir)) })
	testkit.Must(t, os.Chmod(dir, 0o755))
	program := filepath.Join(dir, "dibs") // because that user may not reach the tree
	testkit.Must(t, os.WriteFile(program, testkit.ReadFile(t, binary), 0o755))
	for name, modes := range map[string]struct{ file, folder os.FileMode }{
		"file":   {0o444, 0o777},
		"folder": {0o666, 0o555},
		"empty":  {0, 0o555}, // there is no file yet
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{dir: filepath.Join(dir, name)}
			testkit.Must(t, os.Mkdir(b.dir, 0o755))
			b.store = "sqlite:" + b.path("dibs.db")
			if modes.file != 0 {
				if code, _, stderr := b.run(t, "run", "k", "--", "true"); code != 0 {
					t.Fatal(stderr)
				}
				testkit.Must(t, os.Chmod(b.path("dibs.db"), modes.file))
			}
			testkit.Must(t, os.Chmod(b.dir, modes.folder))
			t.Cleanup(func() { testkit.Must(t, os.Chmod(b.dir, 0o755)) })
			before := tree(t, b.dir)
			p := b.command("run", "k", "--", "true")
			p.Path = program
			if os.Getuid() == 0 {
				p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			p.begin(t)
			if code := p.code(t); code != 69 || !strings.Contains(p.stderr.String(), "cannot be written") || strings.Count(p.stderr.String(), "\n") != 1 {
				t.Errorf("%d, %q; want 69, one line", code, p.stderr.String())
			}
			if after := tree(t, b.dir); after != before {
				t.Errorf("it changed the folder from\n%s to\n%s", before, after)
			}
		})
	}
}

// tree describes a folder: names, kinds and contents.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	testkit.Must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		b.WriteString(strings.TrimPrefix(path, dir) + " " + d.Type().String())
		if d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %x", sha256.Sum256(text))
		}
		b.WriteString("\n")
		return nil
	}))
	return b.String()
}

// TestRunBusy: with --skip, and after --wait, a line says that the key is busy. Nothing is run.
func TestRunBusy(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunBusy)
}

func checkRunBusy(t *testing.T, b *bench) {
	t.Parallel()
	key := "two\nlines"
	holder := b.start(t, "run", "--lease=1h", key, "--", "sh", "-c", "echo > in; exec sleep 600")
	testkit.Eventually(t, "the holder", func() bool { return b.read("in") != "" })
	for name, test := range map[string]struct {
		flags []string
		says  string
		atmin time.Duration
	}{
		"skip":   {[]string{"--skip"}, "dibs run: the key \"two\\nlines\" is busy\n", 0},
		"wait 0": {[]string{"--wait", "0"}, "dibs run: the key \"two\\nlines\" is busy\n", 0},
		"wait":   {[]string{"--wait", "300ms"}, "dibs run: the key \"two\\nlines\" is still busy after 300ms\n", 300 * time.Millisecond},
	} {
		start := time.Now()
		code, _, stderr := b.run(t, append(append([]string{"run"}, test.flags...), key, "--", "touch", "ran")...)
		if code != 75 || stderr != test.says || time.Since(start) < test.atmin {
			t.Errorf("%s: %d, %q after %v", name, code, stderr, time.Since(start))
		}
	}
	if b.read("ran") != "" {
		t.Error("it ran")
	}
	if e := entry(t, b.inspector(t), key); e.Waiters != 0 {
		t.Errorf("%d places are left in the queue", e.Waiters)
	}
	holder.signal(t, syscall.SIGTERM)
	if code := holder.code(t); code != 143 {
		t.Errorf("the holder exited with %d", code)
	}
}

// TestRunSignalWhileWaiting: a signal cancels the place in the queue.
func TestRunSignalWhileWaiting(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunSignalWhileWaiting)
}

func checkRunSignalWhileWaiting(t *testing.T, b *bench) {
	t.Parallel()
	b.start(t, "run", "--lease=1h", "k", "--", "sleep", "600")
	s := b.inspector(t)
	testkit.Eventually(t, "the holder", func() bool { return entry(t, s, "k").Condition != "" })
	for signal, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		waiter := b.start(t, "run", "k", "--", "touch", "ran")
		testkit.Eventually(t, "the place", func() bool { return entry(t, s, "k").Waiters == 1 })
		waiter.signal(t, signal)
		if code := waiter.code(t); code != want || !strings.Contains(waiter.stderr.String(), "while waiting for the key") {
			t.Errorf("%v: %d, %q", signal, code, waiter.stderr.String())
		}
		if n := entry(t, s, "k").Waiters; n != 0 {
			t.Errorf("%v: %d places are left", signal, n)
		}
	}
}

// TestRunLockedStore: dibs run waits for a locked store within its limit, and runs nothing.
func TestRunLockedStore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start(t, "run", "l", "--", "sh", "-c", "touch started; exec sleep 600") // keeps the file open
	testkit.Eventually(t, "the holder", func() bool { return b.exists("started") })
	lockWriters(t, b.path("dibs.db"))
	code, _, stderr := b.run(t, "run", "k", "--", "touch", "ran")
	if code != 69 || !strings.Contains(stderr, "locked") || b.exists("ran") {
		t.Errorf("%d, %q", code, stderr)
	}
}
