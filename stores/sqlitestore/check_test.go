package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// sound is what Check looks at when all is well.
func sound() facts {
	return facts{
		filesystem: filesystem{name: "a local disk", free: 1 << 40},
		journal:    "wal", synchronous: 2,
		size: 1 << 30, free: 1 << 20, log: 16 << 20,
		fence: 1_000_000, wall: 1_000_000, clockSource: "tsc",
	}
}

// TestFindings: each thing that is wrong is found, alone, with a cure.
func TestFindings(t *testing.T) {
	for name, test := range map[string]struct {
		change   func(*facts)
		name     string
		severity store.Severity
		says     string
	}{
		"nothing":        {change: func(*facts) {}},
		"damage":         {func(f *facts) { f.damage = "row 3\nmissing" }, "damage", store.SeverityDangerous, "damaged: row 3 missing."},
		"too large":      {func(f *facts) { f.incomplete = true }, "damage", store.SeverityUnchecked, "1024 MiB"},
		"mounted alone":  {func(f *facts) { f.mounted = true }, "mount", store.SeverityDangerous, "mount point of its own"},
		"readable":       {func(f *facts) { f.readable = []string{"/a", "/a-wal"} }, "readable", store.SeverityAdvice, "read /a and /a-wal and"},
		"no queue":       {func(f *facts) { f.turn = "it is a folder" }, "turn", store.SeverityAdvice, "do not queue"},
		"read-only":      {func(f *facts) { f.writable = ErrReadOnly }, "read-only", store.SeverityDangerous, "may no longer write"},
		"journal":        {func(f *facts) { f.journal = "delete" }, "durability", store.SeverityDangerous, "delete"},
		"synchronous":    {func(f *facts) { f.synchronous = 1 }, "durability", store.SeverityDangerous, "not synchronized"},
		"bloat":          {func(f *facts) { f.free = 600 << 20 }, "bloat", store.SeverityAdvice, "600 MiB of the file's 1024 MiB"},
		"a small file":   {change: func(f *facts) { f.size, f.free = 8<<20, 7<<20 }},
		"half is in use": {change: func(f *facts) { f.free = 500 << 20 }},
		"log":            {func(f *facts) { f.log = 1 << 30 }, "log", store.SeverityAdvice, "1024 MiB"},
		"network":        {func(f *facts) { f.filesystem.name, f.filesystem.trait = "NFS", network }, "filesystem", store.SeverityDangerous, "NFS"},
		"memory":         {func(f *facts) { f.filesystem.name, f.filesystem.trait = "tmpfs", inMemory }, "filesystem", store.SeverityDangerous, "tmpfs"},
		"container":      {func(f *facts) { f.filesystem.name, f.filesystem.trait = "overlayfs", container }, "filesystem", store.SeverityAdvice, "overlayfs"},
		"served":         {func(f *facts) { f.filesystem.name, f.filesystem.trait = "FUSE", userspace }, "filesystem", store.SeverityAdvice, "FUSE"},
		"unknown":        {func(f *facts) { f.filesystem = filesystem{} }, "filesystem", store.SeverityUnchecked, "does not tell"},
		"nearly full":    {func(f *facts) { f.filesystem.free = 1 << 20 }, "space", store.SeverityAdvice, "1 MiB left"},
		"clock source":   {func(f *facts) { f.clockSource = "refined-jiffies" }, "clock", store.SeverityAdvice, "refined-jiffies"},
		"time namespace": {func(f *facts) { f.ownTime = true }, "clock", store.SeverityDangerous, "time namespace"},
		"clock set back": {func(f *facts) { f.fence += engine.Micros(time.Hour) }, "clock", store.SeverityAdvice, "1h0m0s ahead"},
	} {
		t.Run(name, func(t *testing.T) {
			f := sound()
			test.change(&f)
			found := f.findings()
			if test.name == "" {
				if len(found) != 0 {
					t.Errorf("found %+v", found)
				}
				return
			}
			if len(found) != 1 || found[0].Name != test.name || found[0].Severity != test.severity || !strings.Contains(found[0].What, test.says) {
				t.Fatalf("found %+v; want %s, %s, %q", found, test.name, test.severity, test.says)
			}
			for _, text := range []string{found[0].What, found[0].Cure} {
				if !strings.HasSuffix(text, ".") || strings.Contains(text, "\n") || text[:1] != strings.ToUpper(text[:1]) {
					t.Errorf("it is not a sentence: %q", text)
				}
			}
		})
	}
	f := sound()
	f.damage, f.log, f.filesystem = "x", 1<<30, filesystem{}
	var order []string
	for _, finding := range f.findings() {
		order = append(order, string(finding.Severity))
	}
	if got := strings.Join(order, " "); got != "dangerous advice unchecked" {
		t.Errorf("the order is %s", got)
	}
}

// checkNames returns the names of what Check finds, without those that depend on
// where the tests run.
func checkNames(t *testing.T, s *Store) []string {
	t.Helper()
	found, err := s.Check(t.Context())
	testkit.Must(t, err)
	var names []string
	for _, f := range found {
		if f.Name != findFilesystem && f.Name != findSpace {
			names = append(names, f.Name)
		}
	}
	return names
}

// TestCheck: of a store that is well nothing is said, and nothing is changed; a
// clock that was set back and a changed mode are found in the file.
func TestCheck(t *testing.T) {
	t.Parallel() // it waits until the store looks where its file is
	path := filepath.Join(t.TempDir(), "dibs.db")
	clock := newTestClock("boot", time.Hour)
	s := openTest(t, path, nil, clock.clock())
	key := store.Key{Name: "k"}
	claims := []store.Claim{{Key: key, Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1}}
	answers := make([]store.Answer, 1)
	if err := s.Claim(t.Context(), claims, answers); err != nil || answers[0].Err != nil {
		t.Fatal(err, answers[0].Err)
	}
	if names := checkNames(t, s); names != nil {
		t.Errorf("found %v", names)
	}
	clock.wall.Add(-engine.Micros(time.Hour))
	if names := fmt.Sprint(checkNames(t, s)); names != "[clock]" {
		t.Errorf("after the clock was set back: %s", names)
	}
	clock.wall.Add(engine.Micros(time.Hour))
	var of *FileError
	moved := path + ".moved"
	testkit.Must(t, os.Rename(path, moved))
	clock.pass(time.Minute)
	testkit.Eventually(t, "the file is missed", func() bool {
		_, err := s.Check(t.Context())
		return errors.As(err, &of) && errors.Is(err, ErrMoved)
	})
	testkit.Must(t, os.Rename(moved, path))
}

// TestCheckDamage: damage where no call reads is found, and one that
// is too large to be read in time is not said to be well.
func TestCheckDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dibs.db")
	s, err := Open(path, nil)
	testkit.Must(t, err)
	client, err := dibs.New(s, &dibs.Options{Timeout: testkit.Limit})
	testkit.Must(t, err)
	for i := range 40 {
		if _, err := dibs.Once(t.Context(), client, fmt.Sprint("key ", i), nil, func(context.Context) (string, error) {
			return strings.Repeat("x", 20_000), nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Must(t, errors.Join(client.Close(), s.Close()))
	conn, err := lite.Open(path, lite.ReadWrite)
	testkit.Must(t, err)
	const check = "PRAGMA quick_check(1)"
	var f facts
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.checkDamage(over, conn, check); err != nil || !f.incomplete || f.damage != "" {
		t.Errorf("a check without time: %+v, %v", f, err)
	}
	f = facts{}
	if err := errors.Join(f.read(conn), f.checkDamage(t.Context(), conn, check)); err != nil || f.incomplete || f.damage != "" || f.size < 800_000 || f.journal != "wal" {
		t.Errorf("a check: %+v, %v", f, err)
	}
	testkit.Must(t, conn.Close())
	page := make([]byte, 4096)
	for i := range page {
		page[i] = 0xa5
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	testkit.Must(t, err)
	info, err := file.Stat()
	testkit.Must(t, err)
	for at := info.Size() / 2 / 4096 * 4096; at < info.Size(); at += 4096 {
		if _, err := file.WriteAt(page, at); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Must(t, file.Close())
	if conn, err = lite.Open(path, lite.ReadWrite); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f = facts{}
	if err := errors.Join(f.read(conn), f.checkDamage(t.Context(), conn, check)); err != nil || f.damage == "" {
		t.Errorf("a check of what is damaged: %+v, %v", f, err)
	}
}

// TestFilesystem: where the tests run there is a filesystem with space left, and
// what is special about one is known by its number.
func TestFilesystem(t *testing.T) {
	fs := filesystemOf(t.TempDir())
	if runtime.GOOS != "linux" {
		if fs.name != "" {
			t.Errorf("it is %+v", fs)
		}
		return
	}
	if fs.name == "" || fs.free <= 0 {
		t.Errorf("it is %+v", fs)
	}
	if fs := filesystemOf("/proc/self"); fs.free != 0 {
		t.Errorf("/proc is %+v", fs)
	}
	if fs := filesystemOf(filepath.Join(t.TempDir(), "missing")); fs.name != "" {
		t.Errorf("what is not there is %+v", fs)
	}
}

// TestCheckPlace: before there is a file, its folder and the filesystem are looked at, and nothing is made.
func TestCheckPlace(t *testing.T) {
	folder := t.TempDir()
	testkit.Must(t, os.Symlink(filepath.Join(folder, "gone", "dibs.db"), filepath.Join(folder, "link.db")))
	for name, want := range map[string]string{"dibs.db": "", "gone/dibs.db": "its folder does not exist", "link.db": "its folder does not exist"} {
		says := ""
		for _, f := range CheckPlace(filepath.Join(folder, name)) {
			if f.Name == findFolder {
				says = f.What
			}
		}
		if (says != "") != (want != "") || !strings.Contains(says, want) {
			t.Errorf("%s: %q; want %q", name, says, want)
		}
	}
	if made, err := os.ReadDir(folder); err != nil || len(made) != 1 {
		t.Errorf("the folder has %v, %v", made, err)
	}
	if fs := filesystemOf("/dev/shm"); fs.trait == inMemory {
		found := CheckPlace("/dev/shm/dibs-that-nobody-makes.db")
		if len(found) == 0 || found[0].Name != findFilesystem || found[0].Severity != store.SeverityDangerous {
			t.Errorf("a file in memory: %v", found)
		}
	}
}
