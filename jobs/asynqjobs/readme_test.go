package asynqjobs

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// TestReadme: its code is that of the example, and each promise of the table has its test.
func TestReadme(t *testing.T) {
	t.Parallel()
	house.Readme(t, 80)
	house.ReadmeRuns(t)
}
