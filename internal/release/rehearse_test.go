//go:build nightly

package main

import "testing"

// What people will do on the day of the release works today, and every program is built for every system.
func TestRehearsal(t *testing.T) {
	r, err := prepare(t.Context(), repository(t), t.TempDir(), "v0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := r.rehearse(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.makeDownloads(t.Context()); err != nil {
		t.Fatal(err)
	}
}
