package gocronlock_test

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// TestReadme: its code is that of the example, and each test that it names is there.
func TestReadme(t *testing.T) {
	house.Readme(t, 60)
	house.ReadmeRuns(t)
}
