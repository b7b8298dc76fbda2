//go:build unix

package sqlitestore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// made returns the path of a sound store that nothing has open.
func made(t *testing.T) string {
	t.Helper()
	path := testFile(t)
	s, err := Open(path, nil)
	testkit.Must(t, err)
	mustGrant(t, s, lock("k"))
	testkit.Must(t, s.Close())
	return path
}

// claimError returns what a store says to a claim.
func claimError(t *testing.T, s *Store) error {
	t.Helper()
	return s.Claim(t.Context(), []store.Claim{lock("other")}, make([]store.Answer, 1))
}

// TestHardLinkIsRefused: SQLite finds the log by the name of the file, so a file with two
// names would have two logs, and a key two holders.
func TestHardLinkIsRefused(t *testing.T) {
	for name, link := range map[string]func(path string) (open string, err error){
		"the other name": func(path string) (string, error) {
			return path + ".other", os.Link(path, path+".other")
		},
		"the first name": func(path string) (string, error) { return path, os.Link(path, path+".other") },
		"in another folder": func(path string) (string, error) {
			folder := filepath.Join(filepath.Dir(path), "folder")
			other := filepath.Join(folder, "dibs.db")
			return other, errors.Join(os.Mkdir(folder, 0o700), os.Link(path, other))
		},
		"a symbolic link to the other name": func(path string) (string, error) {
			return path + ".soft", errors.Join(os.Link(path, path+".other"), os.Symlink(path+".other", path+".soft"))
		},
		"a log with two names": func(path string) (string, error) {
			return path, errors.Join(os.WriteFile(path+"-wal", nil, 0o600), os.Link(path+"-wal", path+".other-wal"))
		},
		"a log that is a symbolic link": func(path string) (string, error) {
			return path, errors.Join(os.WriteFile(path+".log", nil, 0o600), os.Symlink(path+".log", path+"-wal"))
		},
		"shared memory that is a symbolic link": func(path string) (string, error) {
			return path, os.Symlink("nowhere", path+"-shm")
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := link(made(t))
			testkit.Must(t, err)
			s, err := Open(path, nil)
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, ErrLinked) || !strings.Contains(err.Error(), cures[ErrLinked]) {
				t.Errorf("it is opened with %v; it should be refused with %q and its cure", err, ErrLinked)
			}
		})
	}
}

// TestChangedNames: what gives the file or its log a second name, or takes one away, while
// the store is open ends its work.
func TestChangedNames(t *testing.T) {
	for name, test := range map[string]struct {
		change func(path string) error
		want   error
	}{
		"a hard link": {func(path string) error { return os.Link(path, path+".other") }, ErrLinked},
		"a hard link of the log": {func(path string) error {
			return os.Link(path+"-wal", path+".other-wal")
		}, ErrLinked},
		"moved, and a symbolic link in its place": {func(path string) error {
			return errors.Join(os.Rename(path, path+".new"), os.Symlink(path+".new", path))
		}, ErrMoved},
		"a copy in its place": {func(path string) error {
			data, err := os.ReadFile(path + "-wal") // the file itself must not be opened
			return errors.Join(err, os.Rename(path, path+".old"), os.WriteFile(path, data, 0o600))
		}, ErrMoved},
		"the log is deleted": {func(path string) error { return os.Remove(path + "-wal") }, ErrMoved},
		"the log and the shared memory are replaced": {func(path string) error {
			return errors.Join(os.Remove(path+"-wal"), os.Remove(path+"-shm"), os.WriteFile(path+"-wal", nil, 0o600), os.WriteFile(path+"-shm", nil, 0o600))
		}, ErrMoved},
		"the shared memory, where the locks are, is deleted": {func(path string) error { return os.Remove(path + "-shm") }, ErrMoved},
	} {
		t.Run(name, func(t *testing.T) {
			path := testFile(t)
			s, err := Open(path, nil)
			testkit.Must(t, err)
			defer s.Close()
			mustGrant(t, s, lock("k"))
			testkit.Must(t, test.change(path))
			if err := claimError(t, s); !errors.Is(err, test.want) {
				t.Errorf("the next claim gets %v, not %v", err, test.want)
			}
		})
	}
}

// TestOneStoreUnderAllItsNames: symbolic links, relative paths and the names in /proc lead
// to one file with one log and one queue of writers.
func TestOneStoreUnderAllItsNames(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	testkit.Must(t, err)
	folder, deep := filepath.Join(root, "folder"), filepath.Join(root, "other", "deep")
	path := filepath.Join(folder, "dibs.db")
	link := func(target, name string) string {
		name = filepath.Join(root, name)
		testkit.Must(t, os.Symlink(target, name))
		return name
	}
	testkit.Must(t, errors.Join(os.Mkdir(folder, 0o700), os.MkdirAll(deep, 0o700)))
	t.Chdir(deep)
	names := []string{
		link("folder/dibs.db", "first.db"), // it dangles: the first store creates the file
		path,
		link("first.db", "second.db"),
		filepath.Join(link("folder", "short"), "dibs.db"),
		"../../folder/dibs.db",
		"./../../folder/./dibs.db",
		// The parent of what the link leads to, not of the link.
		link("other/deep", "sideways") + "/../../folder/dibs.db",
		"../../second.db",
	}
	held := lock("k")
	for i, name := range names {
		s := openTest(t, name, nil, hostClock)
		if i == 0 {
			mustGrant(t, s, held)
		}
		wantState(t, name, claimOne(t, s, lock("k")), store.Held)
		if s.names.full != path {
			t.Errorf("%s leads to %s, not %s", name, s.names.full, path)
		}
	}
	for _, dir := range []string{root, folder, deep} {
		entries, err := os.ReadDir(dir)
		testkit.Must(t, err)
		for _, e := range entries {
			if strings.Contains(e.Name(), "db-") && dir != folder {
				t.Errorf("%s is in %s", e.Name(), dir)
			}
		}
	}
}

// TestRetargetedLink: a symbolic link that leads to another file now is noticed, because
// the next program would open that one.
func TestRetargetedLink(t *testing.T) {
	path, other := made(t), made(t)
	name := filepath.Join(t.TempDir(), "link.db")
	testkit.Must(t, os.Symlink(path, name))
	s, err := Open(name, nil)
	testkit.Must(t, err)
	defer s.Close()
	testkit.Must(t, errors.Join(claimError(t, s), os.Remove(name), os.Symlink(other, name)))
	if err := claimError(t, s); !errors.Is(err, ErrMoved) {
		t.Errorf("the next claim gets %v", err)
	}
}

// TestNamesOfDescriptors: a name in /proc leads to the file's own name, and is refused if
// the file has none any more.
func TestNamesOfDescriptors(t *testing.T) {
	if !exists("/proc/self/fd") {
		t.Skip("this system has no /proc/self/fd")
	}
	path := made(t)
	f, err := os.Open(filepath.Dir(path))
	testkit.Must(t, err)
	defer f.Close()
	full, err := filepath.EvalSymlinks(path)
	testkit.Must(t, err)
	name := filepath.Join("/proc/self/fd", fdName(f), "dibs.db")
	s, err := Open(name, nil)
	testkit.Must(t, err)
	defer s.Close()
	if s.names.full != full {
		t.Errorf("%s leads to %s", name, s.names.full)
	}
	gone, err := os.CreateTemp(t.TempDir(), "")
	testkit.Must(t, err)
	defer gone.Close()
	testkit.Must(t, os.Remove(gone.Name()))
	if s, err := Open(filepath.Join("/proc/self/fd", fdName(gone)), nil); err == nil {
		_ = s.Close()
		t.Error("a file without a name was opened")
	}
}

// TestNamesThatAreURIs: a path that means something else to other programs is refused,
// because they would use another file.
func TestNamesThatAreURIs(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{":memory:", "file:x", "file:x?mode=memory", "file:///tmp/x.db?nolock=1"} {
		s, err := Open(name, nil)
		if err == nil {
			_ = s.Close()
			t.Errorf("%q was opened", name)
		} else if !strings.Contains(err.Error(), name) {
			t.Errorf("%q: the error is %v", name, err)
		}
	}
	if entries, err := os.ReadDir("."); err != nil || len(entries) > 0 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}

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
