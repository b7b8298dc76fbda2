package mysqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"
)

// TestTryEnds: if the context has ended the error says so, although the driver closes the connection
// then and returns another error.
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
