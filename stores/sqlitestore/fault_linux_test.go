package sqlitestore

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
