package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/testkit"
)

// TestNoTestIsReplaced: no command replaces the process of a test by another program, which would
// end the tests and exit with 0.
func TestNoTestIsReplaced(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, torturer), []byte("#!/bin/sh\nexit 0\n"), 0o755))
	t.Setenv("PATH", dir)
	for _, args := range []string{"torture", "torture --duration 5m", "torture --faults none"} {
		if code, _, stderr := call(t, nil, strings.Fields(args)...); code != 69 || !strings.Contains(stderr, "may not be replaced") {
			t.Errorf("%s: %d, %s", args, code, stderr)
		}
	}
	for _, args := range []string{"torture --help", "torture -h", "help torture"} {
		if code, stdout, _ := call(t, nil, strings.Fields(args)...); code != 0 || !strings.Contains(stdout, "Runs the program dibs-torture") {
			t.Errorf("%s: %d, %s", args, code, stdout)
		}
	}
}

// TestInstallTorturer: only a release can be named to go install. Any other build is of a clone.
func TestInstallTorturer(t *testing.T) {
	const clone = "go install ./cmd/dibs-torture # in the clone"
	for release, want := range map[string]string{
		"v0.1.0":                               "go install github.com/dibs-go/dibs/cmd/dibs-torture@v0.1.0",
		"devel":                                clone,
		"v0.1.0+dirty":                         clone,
		"v0.0.0-20261127165044-bb14d6a2b625":   clone,
		"v0.1.1-0.20261127165044-bb14d6a2b625": clone,
	} {
		if got := installTorturer(release); got != want {
			t.Errorf("%s: %s; want %s", release, got, want)
		}
	}
}
