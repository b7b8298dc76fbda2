//go:build nightly

package main

import (
	"testing"

	"github.com/dibs-go/dibs/internal/testkit"
)

// What users will do on the day of the release works today, and every program is built for every system.
func TestTrial(t *testing.T) {
	r, err := prepare(t.Context(), repository(t), t.TempDir(), "v0.0.1")
	testkit.Must(t, err)
	defer r.close()
	testkit.Must(t, r.tryOut(t.Context()))
	testkit.Must(t, r.makeDownloads(t.Context()))
}
