//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// privateApt calls do with options of apt-get that make it read sources of its own, from a temporary
// folder with lists of packages and a cache. It does not change the system's sources.
func privateApt(get, sources string, do func(dir string, private []string) (output string, err error)) (output string, err error) {
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
	list := filepath.Join(dir, "sources.list")
	if err := os.WriteFile(list, []byte(sources), 0o600); err != nil {
		return "", err
	}
	private := []string{
		"-o", "Dir::Etc::SourceList=" + list,
		"-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(dir, "lists"),
		"-o", "Dir::Cache=" + filepath.Join(dir, "cache"),
		"-o", "APT::Sandbox::User=root", // only root can enter the folder
	}
	if output, err = aptGet(get, append(private, "update")...); err != nil {
		return output, err
	}
	return do(dir, append(private, "install", "-y", "--no-install-recommends"))
}

// fromBackports installs a package that Debian has only in its backports, from the
// system's mirror.
func fromBackports(get, pkg string) (output string, err error) {
	mirror, release, err := mirrorOf(get)
	if err != nil {
		return "", err
	}
	sources := fmt.Sprintf("deb %[1]s %[2]s main\ndeb %[1]s %[2]s-backports main\n", mirror, release)
	return privateApt(get, sources, func(_ string, install []string) (string, error) { return aptGet(get, append(install, pkg)...) })
}

// mirrorOf returns the mirror of the system's release, and its code name.
func mirrorOf(get string) (mirror, release string, err error) {
	lines, err := aptGet(get, "indextargets", "--format", "$(REPO_URI) $(CODENAME)",
		"Created-By: Packages", "Label: Debian", "Component: main")
	if err != nil {
		return "", "", fmt.Errorf("%w\n%s", err, lines)
	}
	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)
		// Without updates and backports.
		if len(fields) == 2 && !strings.Contains(fields[1], "-") {
			return fields[0], fields[1], nil
		}
	}
	return "", "", errors.New("the system is not Debian, or has no mirror")
}

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
	return privateApt(get, fmt.Sprintf("deb %s unstable main\n", mirror), func(dir string, install []string) (string, error) {
		status := filepath.Join(dir, "status") // nothing is installed, so all dependencies are needed
		if err := os.WriteFile(status, nil, 0o600); err != nil {
			return "", err
		}
		if output, err := aptGet(get, append(install, "-o", "Dir::State::status="+status, "--download-only", u.pkg)...); err != nil {
			return output, err
		}
		archives, err := filepath.Glob(filepath.Join(dir, "cache", "archives", "*.deb"))
		if err != nil {
			return "", err
		}
		return u.unpack(archives)
	})
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
