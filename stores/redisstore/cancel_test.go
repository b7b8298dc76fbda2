package redisstore

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/store"
)

// TestCancelledCall: a call whose context ends while the server has it returns. Its
// caller gives back what it may have got.
func TestCancelledCall(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	w := servertest.NewWire(t, server.Addr())
	// No limit of the store's own ends the call.
	s := overClient(t, rueidis.ClientOption{
		InitAddress: []string{w.Addr()}, DisableCache: true, ForceSingleClient: true, ConnWriteTimeout: 2 * testkit.Limit,
	})
	held, waits, free := lock("held"), lock("held", queued), lock("free")
	mustGrant(t, s, held)
	mustBeConnected(t, server, s, lock("held", queued))
	w.Set(wire.Trouble{Lose: [2]bool{wire.Replies: true}}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Claim(ctx, []store.Claim{waits, free}, make([]store.Answer, 2)) }()
	testkit.Eventually(t, "the server has it", func() bool {
		return server.Must("EXISTS", newName(s, free.Key, 's')) == int64(1)
	})
	cancel()
	if err := testkit.Await(t, "the call's end", done); !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
	w.Cut() // the connection that lost its replies
	w.Mend()
	for _, c := range []store.Claim{free, waits} {
		testkit.Eventually(t, "it is undone over another connection", func() bool {
			_, err := settle(t, s, c, store.Undo)
			return err == nil
		})
	}
	if server.Must("EXISTS", newName(s, free.Key, 's')) != int64(0) {
		t.Error("the lease of the cancelled call is still there")
	}
	if n := waitersOf(t, open(t, server.URL(), &Options{Prefix: s.Prefix()}), held.Key); n != 1 {
		t.Errorf("%d wait; the place of the cancelled call should be gone", n)
	}
}
