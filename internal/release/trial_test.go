//go:build nightly

package main

import "testing"

// What users will do on the day of the release works today, and every program is built for every system.
func TestTrial(t *testing.T) {
	r, err := prepare(t.Context(), repository(t), t.TempDir(), "v0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := r.tryOut(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.makeDownloads(t.Context()); err != nil {
		t.Fatal(err)
	}
}
