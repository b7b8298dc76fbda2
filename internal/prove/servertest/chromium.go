//go:build unix

package servertest

import "testing"

// chromiumProgram is a browser. Only nightly tests need it.
var chromiumProgram = program{names: []string{"chromium", "chromium-browser"}, pkg: "chromium", env: "DIBS_CHROMIUM"}

// Chromium returns the path of a browser. It installs a missing one if it may.
func Chromium(t testing.TB) string {
	t.Helper()
	path, err := chromiumProgram.find()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
