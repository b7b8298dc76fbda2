//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// An unpacking says how a program is had that the system's release lacks and
// Debian's unstable one has.
type unpacking struct {
	pkg string // what the package is called there
	dir string // where its files go, and the program under its own name
	bin string // the program in the package
}

// fromUnstable unpacks a package with all that it needs, down to the C library,
// in a folder of its own, from the mirror that the system uses. Nothing is
// installed. The program is started by a script that has it use those files.
func fromUnstable(get string, u *unpacking) (output string, err error) {
	mirror, _, err := mirrorOf(get)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "dibs-apt-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return "", err
		}
	}
	for name, text := range map[string]string{
		"sources.list": fmt.Sprintf("deb %s unstable main\n", mirror),
		"status":       "", // nothing is installed: all is needed
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	private := []string{
		"-o", "Dir::Etc::SourceList=" + filepath.Join(dir, "sources.list"),
		"-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(dir, "lists"),
		"-o", "Dir::State::status=" + filepath.Join(dir, "status"),
		"-o", "Dir::Cache=" + filepath.Join(dir, "cache"),
		"-o", "APT::Sandbox::User=root", // the folder is ours alone
	}
	if output, err = aptGet(get, append(private, "update")...); err != nil {
		return output, err
	}
	if output, err = aptGet(get, append(private, "install", "-y", "--no-install-recommends", "--download-only", u.pkg)...); err != nil {
		return output, err
	}
	archives, err := filepath.Glob(filepath.Join(dir, "cache", "archives", "*.deb"))
	if err != nil {
		return "", err
	}
	return u.unpack(archives)
}

// unpack unpacks the archives, and puts the script there when all is whole.
func (u *unpacking) unpack(archives []string) (output string, err error) {
	if err := os.RemoveAll(u.dir); err != nil {
		return "", err
	}
	root := filepath.Join(u.dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	for _, archive := range archives {
		if out, err := exec.Command("dpkg", "-x", archive, root).CombinedOutput(); err != nil {
			return string(out), err
		}
	}
	loader, err := first(root, "usr/lib64/ld-linux-*", "lib64/ld-linux-*", "usr/lib/ld-linux-*", "lib/ld-linux-*")
	if err != nil {
		return "", err
	}
	libraries, err := first(root, "usr/lib/*-linux-gnu*")
	if err != nil {
		return "", err
	}
	// It knows its files by the name that it is started under.
	bin := filepath.Join(root, u.bin)
	script := fmt.Sprintf("#!/bin/sh\nexec %s --argv0 %s --library-path %s %[2]s \"$@\"\n", loader, bin, libraries)
	return "", os.WriteFile(filepath.Join(u.dir, filepath.Base(u.bin)), []byte(script), 0o755)
}

// first returns the first file below a folder that one of the patterns names.
func first(root string, patterns ...string) (string, error) {
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err == nil && len(found) > 0 {
			return found[0], nil
		}
	}
	return "", errors.New("nothing in the package is called " + patterns[0])
}
