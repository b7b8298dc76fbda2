package pgstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/store"
)

// synchronous starts a server with a synchronous standby, and returns the way between them.
func synchronous(t *testing.T) (primary *servertest.PostgresServer, link *wire.Wire) {
	t.Helper()
	options := servertest.PostgresOptions{NoSync: true, Standbys: true, Settings: []string{"synchronous_standby_names = '*'"}}
	primary = servertest.Postgres(t, &options)
	options.StandbyOf = primary
	standby := servertest.Postgres(t, &options)
	link = servertest.NewWire(t, primary.Addr())
	standby.Follow(link.Addr())
	standby.AwaitStandby(primary)
	return primary, link
}

// TestSynchronousStandby: while no synchronous standby has a record, no claim is answered from it,
// whoever ended the wait of the holder's COMMIT. Nor does a call that gives up end it.
func TestSynchronousStandby(t *testing.T) {
	t.Parallel()
	primary, link := synchronous(t)
	s := open(t, primary.URL(), nil)
	waiting := func() int {
		return len(primary.Query("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%settle%'"))
	}
	given := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1, MaxAge: time.Hour}
	answers := make([]store.Answer, 1)
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{given}, answers))

	link.Set(wire.Trouble{Hold: true}, nil)
	settling, giveUp := context.WithCancel(t.Context())
	settled := make(chan error, 1)
	go func() {
		settled <- s.Settle(settling, []store.Settlement{{Key: given.Key, Token: given.Token, Outcome: store.Keep, Data: []byte("kept"), Retention: time.Hour}}, make([]error, 1))
	}()
	testkit.Eventually(t, "the settlement waits for the standby", func() bool { return waiting() == 1 })
	giveUp()
	if err := <-settled; !errors.Is(err, context.Canceled) {
		t.Errorf("the settlement is answered with %v", err)
	}

	primary.Query("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%settle%'")
	testkit.Eventually(t, "the record is visible", func() bool {
		return primary.Query("SELECT count(*) FROM public.dibs_key WHERE rec_data = 'kept'")[0][0] == "1"
	})
	late := given
	late.Token = store.NewToken()
	waits := func(what string, claim store.Claim, statement string) {
		t.Helper()
		waiting := func() int { // the server continues with what was given up
			return len(primary.Query("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '" + statement + "'"))
		}
		before := waiting()
		asking, stop := context.WithCancel(t.Context())
		asked := make(chan error, 1)
		go func() { asked <- s.Claim(asking, []store.Claim{claim}, answers) }()
		testkit.Eventually(t, what+" waits for the standby", func() bool { return waiting() == before+1 })
		stop()
		if err := <-asked; !errors.Is(err, context.Canceled) {
			t.Errorf("%s is answered with %v, %v", what, answers[0], err)
		}
	}
	waits("the claim", late, "%claim%")
	look := late
	look.Mode, look.TTL = store.Look, 0
	waits("the look", look, "%claim%")
	primary.Query("SET synchronous_commit = local; UPDATE public.dibs_key SET busy = true")
	waits("the look at a busy key", look, "COMMIT")
	testkit.Must(t, s.Close()) // and whatever it does in the background
	if n := strings.Count(primary.Log(), "canceling wait for synchronous replication"); n != 1 {
		t.Errorf("%d waits for the standby were cancelled; the test did one", n)
	}

	link.Set(wire.Trouble{}, nil)
	s = open(t, primary.URL(), nil)
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{late}, answers))
	if answers[0].State != store.Done || string(answers[0].Record.Data) != "kept" {
		t.Errorf("the claim is answered with %v", answers[0])
	}
}

// TestGivenUpConnections: calls that are given up while the standby is away keep no more connections
// of the server than the store may have.
func TestGivenUpConnections(t *testing.T) {
	t.Parallel()
	primary, link := synchronous(t)
	s := open(t, primary.URL(), nil)
	claim := store.Claim{Key: store.Key{Name: "k"}, TTL: time.Hour, Permits: 1, Weight: 1}
	link.Set(wire.Trouble{Hold: true}, nil)
	for range 4 * frontConns {
		claim.Token = store.NewToken()
		claim.Key.Name += "k"
		asking, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := s.Claim(asking, []store.Claim{claim}, make([]store.Answer, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the claim is answered with %v", err)
		}
		stop()
	}
	n := primary.Query("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")[0][0]
	if left, err := strconv.Atoi(n); err != nil || left == 0 || left > frontConns {
		t.Errorf("%s connections wait for the standby; want at most %d", n, frontConns)
	}
}
