//go:build unix

package servertest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// What a database is made of: small files, a large one with holes, an empty one,
// and folders with rights of their own.
func makeSample(dir string, as *account) error {
	hollow := make([]byte, 3<<20)
	copy(hollow[1<<20:], "in the middle")
	if err := os.Mkdir(filepath.Join(dir, "base"), 0o750); err != nil {
		return err
	}
	for name, text := range map[string]string{"small": "text", "empty": "", "base/hollow": string(hollow), "base/zero": string(make([]byte, 1000))} {
		if err := as.write(filepath.Join(dir, name), text); err != nil {
			return err
		}
	}
	return nil
}

func TestTemplate(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	program := filepath.Join(t.TempDir(), "program")
	executable(t, program, "version 1")
	var made atomic.Int32
	sample := template{kind: "sample", program: program, make: func(dir string, as *account) error {
		made.Add(1)
		return makeSample(dir, as)
	}}
	as, err := unprivileged()
	testkit.Must(t, err)
	dir := t.TempDir()
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		all.Go(func() {
			if err := sample.copyTo(filepath.Join(dir, name), as); err != nil {
				t.Errorf("copying to %s: %v", name, err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times; want once", made.Load())
	}
	want := t.TempDir()
	testkit.Must(t, makeSample(want, nil))
	for _, name := range []string{"small", "empty", "base/hollow", "base/zero"} {
		text := testkit.ReadFile(t, filepath.Join(want, name))
		if got, err := os.ReadFile(filepath.Join(dir, "b", name)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s has %d bytes that differ, %v", name, len(got), err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "a", "base")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("a folder: %v, %v", info, err)
	}

	// What is there is not written over, and another program has another one.
	if err := sample.copyTo(filepath.Join(dir, "a"), as); !errors.Is(err, os.ErrExist) {
		t.Errorf("copying to what is there: %v", err)
	}
	executable(t, program, "version 2, which is longer")
	if err := sample.copyTo(filepath.Join(dir, "d"), as); err != nil || made.Load() != 2 {
		t.Errorf("after an update: %v; made %d times, want twice", err, made.Load())
	}

	// One that could not be made is not taken for one.
	executable(t, program, "version 3")
	broken := sample
	broken.make = func(dir string, as *account) error { return errors.New("no room") }
	if err := broken.copyTo(filepath.Join(dir, "e"), as); !strings.Contains(errorText(err), "no room") {
		t.Errorf("one that cannot be made: %v", err)
	}
	if err := sample.copyTo(filepath.Join(dir, "e"), as); err != nil || made.Load() != 3 {
		t.Errorf("after it: %v; made %d times, want three", err, made.Load())
	}
}
