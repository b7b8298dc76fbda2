//go:build nightly

package mysqlstore

import "testing"

func TestStorm(t *testing.T) {
	t.Parallel()
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suite(server()).Storm(t)
		})
	}
}
