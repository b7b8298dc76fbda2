//go:build unix

package main

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestUnusableStore: a file that is not a store ends the program with 69 and a line that names
// it. Nothing is created or overwritten.
func TestUnusableStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	damaged := filepath.Join(dir, "damaged.db")
	write := func(path string, b []byte) {
		testkit.Must(t, os.WriteFile(path, b, 0o600))
	}
	write(text, []byte(strings.Repeat("Dear diary, I am not a database. ", 40)))
	write(damaged, damagedFile(t))
	for _, path := range []string{dir, text, damaged, filepath.Join(dir, "missing", "dibs.db")} {
		before, _ := os.ReadFile(path)
		for _, args := range [][]string{
			{"proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1"},
			{"show", "k"},
			{"forget", "k", "--yes"},
			{"resolve", "k", "--rerun", "--yes"},
		} {
			code, stdout, stderr := run(t, append(args, "--store", "sqlite:"+path)...)
			if code != 69 || stdout != "" || !strings.Contains(stderr, filepath.Base(path)) {
				t.Errorf("%s on %s: %d %q %q", args[0], path, code, stdout, stderr)
			}
		}
		if after, _ := os.ReadFile(path); string(after) != string(before) {
			t.Errorf("%s was changed", path)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 2 {
		t.Errorf("the folder has %v, %v", left, err)
	}
}

// damagedFile returns a store's file whose first pages are overwritten.
func damagedFile(t *testing.T) []byte {
	t.Helper()
	origin := newCounter(t, nil)
	path := filepath.Join(t.TempDir(), "dibs.db")
	p := startProxy(t, origin.URL, "sqlite:"+path)
	for _, key := range []string{"a", "b", "c"} {
		mustPost(t, p.url, key, strings.Repeat("x", 5000))
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 0 {
		t.Fatalf("the proxy exited with %d", code)
	}
	b := testkit.ReadFile(t, path)
	for i := 100; i < len(b); i++ {
		b[i] = 0xa5
	}
	return b
}

// TestUnwritableStore: a store in a read-only file cannot be used.
func TestUnwritableStore(t *testing.T) {
	t.Parallel()
	// Not below t.TempDir, which only we may enter.
	dir, err := os.MkdirTemp("", "dibs")
	testkit.Must(t, err)
	t.Cleanup(func() { os.Chmod(dir, 0o700); os.RemoveAll(dir) })
	path := filepath.Join(dir, "dibs.db")
	p := startProxy(t, "http://127.0.0.1:1", "sqlite:"+path)
	p.signal(t, syscall.SIGTERM)
	p.code(t)
	exe, err := os.Executable()
	testkit.Must(t, err)
	program := filepath.Join(dir, "dibs")
	// Copied by another process: what this one has open for writing, its children may
	// have open, too, and such a file cannot be run.
	if out, err := exec.Command("cp", exe, program).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	os.Chmod(program, 0o755)
	os.Chmod(path, 0o444)
	os.Chmod(dir, 0o555)
	q := &process{Cmd: exec.Command(program, "proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--store", "sqlite:"+path), done: make(chan struct{})}
	q.Dir = "/"
	if os.Geteuid() == 0 {
		// Nothing is forbidden to root.
		q.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	q.begin(t)
	if code := q.code(t); code != 69 || !strings.Contains(q.stderr.String(), path) {
		t.Errorf("it exited with %d: %s", code, q.stderr.String())
	}
}

// lockWriter takes SQLite's write lock on a store as another program would, and
// returns how to give it back.
func lockWriter(t *testing.T, path string) (unlock func()) {
	t.Helper()
	// In write-ahead mode the lock is a byte of the index file: 120.
	f, err := os.OpenFile(path+"-shm", os.O_RDWR, 0)
	testkit.Must(t, err)
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Start: 120, Len: 1}
	testkit.Eventually(t, "the lock is free", func() bool { return syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &lock) == nil })
	t.Cleanup(func() { f.Close() })
	return func() { f.Close() }
}

// TestLockedStore: while another program has locked the file, a guarded request gets 503 with
// Retry-After and does not run. Other requests are forwarded, and the proxy is not ready.
// Afterwards all works again.
func TestLockedStore(t *testing.T) {
	t.Parallel()
	origin := newCounter(t, nil)
	path := filepath.Join(t.TempDir(), "dibs.db")
	p := startProxy(t, origin.URL, "sqlite:"+path)
	mustPost(t, p.url, "before", "x")
	unlock := lockWriter(t, path)
	r := mustPost(t, p.url, "k", "x")
	if r.status != 503 || retryAfter(r) < 1 {
		t.Errorf("%d %v %q", r.status, r.header, r.body)
	}
	problemOf(t, r)
	if n := origin.of("k"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
	if res, err := http.Get(p.url); err != nil || res.StatusCode != 201 {
		t.Errorf("a request without a key: %v %v", res, err)
	}
	unlock()
	testkit.Eventually(t, "a request runs again", func() bool { return mustPost(t, p.url, "k", "x").status == 201 })
	if n := origin.of("k"); n != 1 {
		t.Errorf("afterwards it ran %d times", n)
	}
	if r := mustPost(t, p.url, "before", "x"); !r.replayed() {
		t.Errorf("what was stored before is not replayed: %d %q", r.status, r.body)
	}
}

// TestLockedAtTheEnd: the file is locked when the proxy stores the answer. The client gets the
// answer. It is stored later, while the lease lasts. The retry is a replay.
func TestLockedAtTheEnd(t *testing.T) {
	t.Parallel()
	g := newGate()
	origin := newCounter(t, g.first())
	path := filepath.Join(t.TempDir(), "dibs.db")
	p := startProxy(t, origin.URL, "sqlite:"+path, "DIBS_PROXY_STORE_TIMEOUT=4s")
	answer := make(chan reply, 1)
	go func() {
		r, _ := post(context.Background(), http.DefaultClient, p.url, "k", "x")
		answer <- r
	}()
	<-g.begun
	unlock := lockWriter(t, path)
	close(g.open)
	if r := <-answer; r.status != 201 || r.body != "run 1 of k" {
		t.Errorf("the answer is %d %q", r.status, r.body)
	}
	unlock()
	testkit.Eventually(t, "the answer is replayed", func() bool { return mustPost(t, p.url, "k", "x").replayed() })
	if n := origin.of("k"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}
