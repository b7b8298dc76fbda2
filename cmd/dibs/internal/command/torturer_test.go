package command

import "testing"

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
