//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// fromBackports installs a package that Debian has only in its backports, from the
// system's mirror. It does not change the system's sources: apt reads them from a
// temporary folder.
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
		"-o", "APT::Sandbox::User=root", // only root can enter the folder
	}
	if output, err = aptGet(get, append(private, "update")...); err != nil {
		return output, err
	}
	return aptGet(get, append(private, "install", "-y", "--no-install-recommends", pkg)...)
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
