//go:build nightly

package torture_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/target"
	"github.com/dibs-go/dibs/proof/torture"
)

// TestLostByFailover: what a failover loses is found, if the store was to lose nothing.
func TestLostByFailover(t *testing.T) {
	t.Parallel()
	on := target.PostgresLocal(t)
	on.Synchronous = true // which it is not
	findsLoss(t, on, "split")
}

// TestLostByPatroni: what Patroni loses without synchronous_mode is found.
func TestLostByPatroni(t *testing.T) {
	t.Parallel()
	findsLoss(t, target.PostgresPatroniHosts(t, true), "manager-stop")
}

func findsLoss(t *testing.T, on *fault.Target, faults string) {
	t.Helper()
	r, err := torture.Run(t.Context(), &torture.Options{URL: on.URL, Target: on, Duration: 10 * time.Second, Faults: faults, Seed: 1, Dir: t.TempDir()})
	testkit.Must(t, err)
	if r.OK() || len(r.Violations) == 0 {
		t.Errorf("nothing was found: %q", r.Failures())
	}
}

// TestStrikeEnds: a fault that ends the test, because its server cannot be started again, ends the run.
func TestStrikeEnds(t *testing.T) {
	t.Parallel()
	on := target.Redis(t, nil)
	on.Server = unstartable{on.Server}
	_, err := torture.Run(t.Context(), &torture.Options{URL: on.URL, Target: on, Duration: time.Hour, Faults: "server-kill", Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "server-kill") {
		t.Errorf("the run ended with %v", err)
	}
}

// unstartable is a server that cannot be started again.
type unstartable struct{ fault.Server }

func (unstartable) Restart() { runtime.Goexit() }
