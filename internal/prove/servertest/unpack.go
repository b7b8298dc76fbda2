//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// An unpacking is a program that only Debian's unstable release has.
type unpacking struct {
	pkg string // the package in unstable
	dir string // the folder for its files and for the program's script
	bin string // the program in the package
}

// fromUnstable unpacks a package and all its dependencies, down to the C library, into a
// folder, from the system's mirror. It installs nothing. A script starts the program with
// those files.
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
		"status":       "", // nothing is installed, so all dependencies are needed
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
		"-o", "APT::Sandbox::User=root", // only root can enter the folder
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

// unpack unpacks the archives, and writes the script last.
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
	// The program finds its files by its argument 0.
	bin := filepath.Join(root, u.bin)
	script := fmt.Sprintf("#!/bin/sh\nexec %s --argv0 %s --library-path %s %[2]s \"$@\"\n", loader, bin, libraries)
	return "", os.WriteFile(filepath.Join(u.dir, filepath.Base(u.bin)), []byte(script), 0o755)
}

// first returns the first file below a folder that matches a pattern.
func first(root string, patterns ...string) (string, error) {
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err == nil && len(found) > 0 {
			return found[0], nil
		}
	}
	return "", errors.New("the package has no file  " + patterns[0])
}
