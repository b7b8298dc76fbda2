package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestFileMountedAlone: doctor finds a file that is mounted without its folder, as in two
// containers that share only the file, and says nothing of a folder that is mounted.
func TestFileMountedAlone(t *testing.T) {
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		t.Skip("this kernel has no user namespaces")
	}
	cmd := testkit.Child("mount", made(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	said, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skip("this user may not make namespaces:", err)
	}
	if err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

func init() { children["mount"] = childMount }

// childMount mounts a file alone, and a folder, and has a store in each checked.
func childMount(args []string) error {
	path := args[0]
	root := filepath.Dir(path)
	alone, folder, other := filepath.Join(root, "alone.db"), filepath.Join(root, "folder"), filepath.Join(root, "other")
	if err := errors.Join(os.WriteFile(alone, nil, 0o600), os.Mkdir(folder, 0o700), os.Mkdir(other, 0o700)); err != nil {
		return err
	}
	if err := errors.Join(unix.Mount(path, alone, "", unix.MS_BIND, ""), unix.Mount(other, folder, "", unix.MS_BIND, "")); err != nil {
		return err
	}
	for path, want := range map[string]bool{path: false, alone: true, filepath.Join(folder, "dibs.db"): false} {
		s, err := Open(path, nil)
		if err != nil {
			return err
		}
		f, err := s.facts(context.Background(), checkLimit)
		if err == nil && f.mounted != want {
			err = fmt.Errorf("%s: is a mount point of its own: %v", path, f.mounted)
		}
		if err := errors.Join(err, s.Close()); err != nil {
			return err
		}
	}
	return nil
}

// A file that this user may not write, or in a folder or on a filesystem where
// nothing may be written, is refused. Root may do everything, so as root the
// attempt is made by a child of the user nobody.
func TestNotWritable(t *testing.T) {
	folder, err := os.MkdirTemp("", "sqlitestore")
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, os.RemoveAll(folder)) })
	binary := copyBinary(t, folder)
	for _, test := range []struct {
		name         string
		file, folder os.FileMode
	}{
		{"file", 0o444, 0o777},
		{"folder", 0o666, 0o555},
		{"unreadable", 0, 0o777},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := filepath.Join(folder, test.name)
			testkit.Must(t, os.Mkdir(in, 0o755))
			path := filepath.Join(in, "dibs.db")
			s, err := Open(path, nil)
			if err == nil {
				err = s.Close()
			}
			if err = errors.Join(err, os.Chmod(path, test.file), os.Chmod(in, test.folder), os.Chmod(folder, 0o755)); err != nil {
				t.Fatal(err)
			}
			output, err := openAs(binary, path).CombinedOutput()
			if said := string(output); err == nil || !strings.Contains(said, path) || !strings.Contains(said, ErrReadOnly.Error()) {
				t.Errorf("the child ended with %v and said %q", err, said)
			}
			testkit.Must(t, errors.Join(os.Chmod(in, 0o755), os.Chmod(path, 0o644)))
		})
	}
}

// openAs returns a child that opens the file, as nobody if this is root.
func openAs(binary, path string) *exec.Cmd {
	cmd := testkit.Child("open", path)
	cmd.Path = binary
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = "/"
	}
	return cmd
}

// TestHasOffset: a time namespace differs from the host's own time.
func TestHasOffset(t *testing.T) {
	for text, want := range map[string]bool{
		"": false,
		"monotonic           0         0\nboottime            0         0\n": false,
		"monotonic           7         0\nboottime            0         0\n": false,
		"monotonic           0         0\nboottime      864000         0\n":  true,
		"monotonic           0         0\nboottime            0 500000000\n": true,
	} {
		if got := hasOffset(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
