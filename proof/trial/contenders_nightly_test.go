//go:build nightly

package main

import (
	"log/slog"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestContenders: each lock can be taken and given back, and without a fault only those have two
// holders whose documentation says so.
func TestContenders(t *testing.T) {
	for _, c := range contenders() {
		t.Run(c.name, func(t *testing.T) {
			r, err := try(t.Context(), &c, groups[0], 2*time.Second, 1, "", slog.New(slog.DiscardHandler))
			testkit.Must(t, err)
			if r.Sections == 0 || r.Overlaps > 0 && c.says["none"] == "" {
				t.Errorf("found %+v", r)
			}
		})
	}
}
