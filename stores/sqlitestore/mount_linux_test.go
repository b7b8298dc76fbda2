package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
