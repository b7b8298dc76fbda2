package mysqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"
)

// TestTryEnds: who has no time left is told so, also where the driver, which closes the
// connection then, says something else.
func TestTryEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	err := try(ctx, func() error {
		if tries++; tries == 2 {
			cancel()
		}
		return driver.ErrBadConn
	})
	if tries != 2 || !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
		t.Errorf("after %d tries: %v", tries, err)
	}
}
