package sqlitestore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A file that this user may not write, or in a folder or on a filesystem where
// nothing may be written, is refused. Root may do everything, so as root the
// attempt is made by a child of the user nobody.
func TestNotWritable(t *testing.T) {
	folder, err := os.MkdirTemp("", "sqlitestore")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
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
			if err := os.Mkdir(in, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(in, "dibs.db")
			s, err := Open(path, nil)
			if err == nil {
				err = s.Close()
			}
			if err = errors.Join(err, os.Chmod(path, test.file), os.Chmod(in, test.folder), os.Chmod(folder, 0o755)); err != nil {
				t.Fatal(err)
			}
			p := startAs(t, binary, path)
			if err := p.input.Close(); err != nil {
				t.Fatal(err)
			}
			err = p.cmd.Wait()
			if said := p.errors.String(); err == nil || !strings.Contains(said, path) || !strings.Contains(said, ErrReadOnly.Error()) {
				t.Errorf("the child ended with %v and said %q", err, said)
			}
			if err := errors.Join(os.Chmod(in, 0o755), os.Chmod(path, 0o644)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// startAs starts a child that opens the file, as nobody if this is root.
func startAs(t *testing.T, binary, path string) *process {
	t.Helper()
	p := prepareChild(t, "open", path)
	p.cmd.Path = binary
	if os.Getuid() == 0 {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		p.cmd.Dir = "/"
	}
	p.launch(t)
	return p
}
