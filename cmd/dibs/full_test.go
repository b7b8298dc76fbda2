//go:build nightly && linux

package main

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestFullDisk: the store's file cannot grow. A request whose key cannot be stored does not
// run; a request whose answer cannot be stored is answered. No request runs twice. When
// there is space again, all works.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	t.Run("a limit on the size of files", func(t *testing.T) {
		fillUp(t, t.TempDir(), func(t *testing.T, p *process, path string) (free func()) {
			wal, err := os.Stat(path + "-wal")
			testkit.Must(t, err)
			limitFiles(t, p, uint64(wal.Size())+8192)
			return func() { limitFiles(t, p, math.MaxUint64) }
		})
	})
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Logf("a small disk of its own was not tried, only a limit: no right to mount (%v)", err)
		return
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	t.Run("a small disk", func(t *testing.T) {
		fillUp(t, dir, func(t *testing.T, _ *process, path string) (free func()) {
			ballast := filepath.Join(dir, "ballast")
			f, err := os.Create(ballast)
			testkit.Must(t, err)
			defer f.Close()
			for block := make([]byte, 4096); err == nil; {
				_, err = f.Write(block)
			}
			return func() { os.Remove(ballast) }
		})
	})
}

// limitFiles sets how long the files that the process writes may become.
func limitFiles(t *testing.T, p *process, size uint64) {
	t.Helper()
	limit := syscall.Rlimit{Cur: size, Max: math.MaxUint64}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(p.Process.Pid), syscall.RLIMIT_FSIZE, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
}

// fillUp runs a proxy with its store in dir and uses up the space.
func fillUp(t *testing.T, dir string, fill func(*testing.T, *process, string) (free func())) {
	origin := newCounter(t, nil)
	path := filepath.Join(dir, "dibs.db")
	p := startProxy(t, origin.URL, "sqlite:"+path, "--access-log=off", "DIBS_PROXY_STORE_TIMEOUT=4s")
	if r := mustPost(t, p.url, "before", "x"); r.status != 201 {
		t.Fatalf("at first: %d", r.status)
	}
	free := fill(t, p, path)
	refused := 0
	for i := 0; i < 1000 && refused < 3; i++ {
		key := fmt.Sprintf("key-%d", i)
		r, err := post(t.Context(), http.DefaultClient, p.url, key, "x")
		switch {
		case err != nil:
			t.Fatal(err)
		case r.status == 503:
			refused++
			if n := origin.of(key); n != 0 {
				t.Errorf("%s was refused and ran %d times", key, n)
			}
		case r.status != 201 || origin.of(key) != 1:
			t.Errorf("%s: %d %q, ran %d times", key, r.status, r.body, origin.of(key))
		}
	}
	if refused == 0 {
		t.Fatal("nothing was refused: the disk was not full")
	}
	free()
	testkit.Eventually(t, "a request runs again", func() bool { return mustPost(t, p.url, "after", "x").status == 201 })
	if r := mustPost(t, p.url, "before", "x"); !r.replayed() {
		t.Errorf("what was stored before is not replayed: %d %q", r.status, r.body)
	}
	if n := origin.of("after"); n != 1 {
		t.Errorf("afterwards it ran %d times", n)
	}
}
