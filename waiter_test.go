package dibs_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// await acquires the key in the background, and returns once it waits.
func await(t *testing.T, c *dibs.Client, o *dibs.AcquireOptions) *acquiring {
	t.Helper()
	a := &acquiring{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.lease, a.err = c.Acquire(t.Context(), "k", o)
	}()
	synctest.Wait()
	return a
}

// acquiring is an Acquire under way.
type acquiring struct {
	done  chan struct{}
	lease *dibs.Lease
	err   error
}

// over reports whether it has returned.
func (a *acquiring) over() bool {
	synctest.Wait()
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// got returns the lease, once it is there.
func (a *acquiring) got(t *testing.T) *dibs.Lease {
	t.Helper()
	<-a.done
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.lease
}

// acquire acquires a key, or ends the test.
func acquire(t *testing.T, c *dibs.Client, key string, o *dibs.AcquireOptions) *dibs.Lease {
	t.Helper()
	lease, err := c.Acquire(t.Context(), key, o)
	testkit.Must(t, err)
	return lease
}

func release(t *testing.T, l *dibs.Lease) {
	t.Helper()
	testkit.Check(t, l.Release())
}

// begins fails the test unless the waiter gets the key so much later, after that many claims
// of all. It releases it, and nothing is left.
func (a *acquiring) begins(t *testing.T, s *pusher, later time.Duration, claims int) {
	t.Helper()
	start := time.Now()
	lease := a.got(t)
	if d := time.Since(start); d != later {
		t.Errorf("it began %v later, want %v", d, later)
	}
	if n, _, _ := s.elements(); n != claims {
		t.Errorf("it took %d claims, want %d", n, claims)
	}
	release(t, lease)
	empty(t, s)
}
