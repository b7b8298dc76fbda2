//go:build unix

package sqlitestore

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"golang.org/x/sys/unix"
)

func fdName(f *os.File) string { return strconv.Itoa(int(f.Fd())) }

// modes returns the modes of a store's files by their suffixes.
func modes(t *testing.T, path string) map[string]fs.FileMode {
	t.Helper()
	all := map[string]fs.FileMode{}
	for _, suffix := range []string{"", "-wal", "-shm", "-turn"} {
		info, err := os.Stat(path + suffix)
		testkit.Must(t, err)
		all[suffix] = info.Mode().Perm()
	}
	return all
}

// TestFilesArePrivate: nobody but their user can read the files that a store creates,
// because stored answers are in them. A file that exists keeps its mode, and the others
// have the same.
func TestFilesArePrivate(t *testing.T) {
	for _, umask := range []int{0, 0o22, 0o77} {
		for name, test := range map[string]struct {
			make   func(path string) error
			shared bool
			want   fs.FileMode
		}{
			"a new file":             {func(string) error { return nil }, false, 0o600},
			"a new file, shared":     {func(string) error { return nil }, true, 0o600},
			"an empty file":          {func(path string) error { return os.WriteFile(path, nil, 0o600) }, false, 0o600},
			"a file of a group":      {func(path string) error { return chmod(os.WriteFile(path, nil, 0o600), path, 0o660) }, false, 0o660},
			"a file for all readers": {func(path string) error { return chmod(os.WriteFile(path, nil, 0o600), path, 0o644) }, false, 0o644},
			"a file that was made private later": {func(path string) error {
				old := os.WriteFile(path+"-turn", nil, 0o600)
				return chmod(chmod(old, path+"-turn", 0o644), path, 0)
			}, false, 0o600},
		} {
			t.Run(name, func(t *testing.T) {
				path := testFile(t)
				testkit.Must(t, test.make(path))
				before := unix.Umask(umask)
				s, err := Open(path, &Options{Shared: test.shared})
				unix.Umask(before)
				testkit.Must(t, err)
				defer s.Close()
				mustGrant(t, s, lock("k"))
				for suffix, mode := range modes(t, path) {
					if mode != test.want {
						t.Errorf("FILE%s has the mode %o, not %o", suffix, mode, test.want)
					}
				}
			})
		}
	}
}

// chmod sets a file's mode if err is nil and the mode is not 0.
func chmod(err error, path string, mode fs.FileMode) error {
	if err != nil || mode == 0 {
		return err
	}
	return os.Chmod(path, mode)
}

// TestCheckReadable: doctor says that others can read the answers, in the file or in its
// log.
func TestCheckReadable(t *testing.T) {
	path := testFile(t)
	s := openTest(t, path, nil, hostClock)
	if names := checkNames(t, s); names != nil {
		t.Errorf("found %v", names)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		testkit.Must(t, os.Chmod(path+suffix, 0o604))
		found, err := s.Check(t.Context())
		testkit.Must(t, err)
		said := false
		for _, f := range found {
			said = said || f.Name == findReadable && strings.Contains(f.What, path+suffix+" ") && f.Severity == store.SeverityAdvice
		}
		if !said {
			t.Errorf("FILE%s is readable; found %+v", suffix, found)
		}
		testkit.Must(t, os.Chmod(path+suffix, 0o600))
	}
}

// TestReaderCannotStopCalls: a program that can only read FILE-turn may lock it, and keep
// it locked. Calls are made all the same, and Open works.
func TestReaderCannotStopCalls(t *testing.T) {
	for name, how := range map[string]int{"shared": unix.LOCK_SH, "exclusive": unix.LOCK_EX} {
		t.Run(name, func(t *testing.T) {
			path := made(t)
			reader, err := os.Open(path + writeQueueSuffix)
			testkit.Must(t, err)
			defer reader.Close()
			testkit.Must(t, unix.Flock(int(reader.Fd()), how))
			first := openTest(t, path, nil, hostClock)
			second := openTest(t, path, nil, hostClock)
			for i := range 50 {
				for _, s := range []*Store{first, second} {
					c := lock("key " + strconv.Itoa(i))
					mustGrant(t, s, c)
					mustSettle(t, s, release(c))
				}
			}
			found, err := first.Check(t.Context())
			testkit.Must(t, err)
			if !strings.Contains(names(found), findTurn) {
				t.Errorf("Check finds %s", names(found))
			}
			testkit.Must(t, unix.Flock(int(reader.Fd()), unix.LOCK_UN))
			testkit.Eventually(t, "the store queues again", func() bool {
				mustGrant(t, first, lock("later "+store.NewToken().String()))
				found, err := first.Check(t.Context())
				return err == nil && !strings.Contains(names(found), findTurn)
			})
		})
	}
}

// TestQueueThatCannotBeUsed: without FILE-turn the store works, and doctor says so.
func TestQueueThatCannotBeUsed(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"a folder":        func(turn string) error { return os.Mkdir(turn, 0o700) },
		"a symbolic link": func(turn string) error { return os.Symlink("elsewhere", turn) },
	} {
		t.Run(name, func(t *testing.T) {
			path := testFile(t)
			testkit.Must(t, spoil(path+writeQueueSuffix))
			s := openTest(t, path, nil, hostClock)
			mustGrant(t, s, lock("k"))
			found, err := s.Check(t.Context())
			if err != nil || !strings.Contains(names(found), findTurn) {
				t.Errorf("Check finds %s, %v", names(found), err)
			}
			if exists(path[:len(path)-len("dibs.db")] + "elsewhere") {
				t.Error("a file was created where the link leads to")
			}
		})
	}
}

// names returns the names of findings.
func names(found []store.Finding) string {
	var all []string
	for _, f := range found {
		all = append(all, f.Name)
	}
	return strings.Join(all, " ")
}
