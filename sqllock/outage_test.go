//go:build nightly

package sqllock

import (
	"context"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// A server that is stopped for longer than it may be silent ends all locks, while it has
// them still: no other session gets one before.
func TestAdvisoryServerPaused(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	a, err := NewAdvisory(t.Context(), openDB(t, "pgx", server.URL()), &AdvisoryOptions{Heartbeat: 50 * time.Millisecond})
	testkit.Must(t, err)
	l, err := a.Lock(t.Context(), IntKey(1), nil)
	testkit.Must(t, err)
	server.Pause()
	wantCause(t, l, dibs.ErrLost)
	server.Continue()
	// The server ends the old session when it notices the end of the connection.
	testkit.Check(t, a.Do(t.Context(), IntKey(1), &LockOptions{Wait: testkit.Limit}, func(context.Context) error { return nil }))
}
