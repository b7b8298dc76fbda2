//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// fromBackports installs a package that a release of Debian has only among its
// backports, from the mirror that the system uses. What apt knows of the world
// stays as it was: it reads its sources from a folder made for it.
func fromBackports(get, pkg string) (output string, err error) {
	mirror, release, err := mirrorOf(get)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "dibs-apt-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(filepath.Join(dir, "lists", "partial"), 0o755); err != nil {
		return "", err
	}
	list := fmt.Sprintf("deb %[1]s %[2]s main\ndeb %[1]s %[2]s-backports main\n", mirror, release)
	sources := filepath.Join(dir, "sources.list")
	if err := os.WriteFile(sources, []byte(list), 0o600); err != nil {
		return "", err
	}
	private := []string{
		"-o", "Dir::Etc::SourceList=" + sources,
		"-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(dir, "lists"),
		"-o", "Dir::Cache::pkgcache=",
		"-o", "Dir::Cache::srcpkgcache=",
		"-o", "APT::Sandbox::User=root", // the folder is ours alone
	}
	if output, err = aptGet(get, append(private, "update")...); err != nil {
		return output, err
	}
	return aptGet(get, append(private, "install", "-y", "--no-install-recommends", pkg)...)
}

// mirrorOf returns the mirror that the system's own release comes from, and the
// release's code name.
func mirrorOf(get string) (mirror, release string, err error) {
	lines, err := aptGet(get, "indextargets", "--format", "$(REPO_URI) $(CODENAME)",
		"Created-By: Packages", "Label: Debian", "Component: main")
	if err != nil {
		return "", "", fmt.Errorf("%w\n%s", err, lines)
	}
	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)
		// Not an update of the release, nor backports that are there already.
		if len(fields) == 2 && !strings.Contains(fields[1], "-") {
			return fields[0], fields[1], nil
		}
	}
	return "", "", errors.New("the system is not Debian, or not from a mirror")
}
