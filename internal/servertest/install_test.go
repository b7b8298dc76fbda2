//go:build unix

package servertest

import (
	"strings"
	"testing"
)

// All are there after one of the other tests, and when one is not and nobody
// may install it, the error says what to do.
func TestInstallAll(t *testing.T) {
	if err := Install(); err != nil {
		t.Fatal(err)
	}
	kept := apt
	t.Cleanup(func() { apt = kept })
	apt = installer{}
	t.Setenv("PATH", t.TempDir())
	places := pgbouncerProgram.places
	t.Cleanup(func() { pgbouncerProgram.places = places })
	pgbouncerProgram.places = nil
	if err := Install(); !strings.Contains(errorText(err), "pgbouncer is missing: install it (on Debian: apt-get install pgbouncer)") {
		t.Errorf("without PgBouncer: %v", err)
	}
}
