package pgstore

import (
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/servertest"
)

// TestOpenHanging: a server that accepts connections and says nothing is one that
// cannot be reached, soon.
func TestOpenHanging(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	server.Pause()
	began := time.Now()
	_, err := Open(t.Context(), server.URL(), nil)
	if took := time.Since(began); !errors.Is(err, ErrUnreachable) || took > 2*openLimit {
		t.Errorf("after %v: %v", took, err)
	}
}
