//go:build nightly

package pgstore

import (
	"testing"
)

func TestStorm(t *testing.T) {
	t.Parallel()
	suite().Storm(t)
}
