package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/store"
)

// cancelling is a store whose caller gives up at one point of its claim.
type cancelling struct {
	*Store
	at     string
	cancel context.CancelFunc
}

func (c *cancelling) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	switch c.at {
	case "before the claim is sent":
		c.cancel()
		return c.Store.Claim(ctx, claims, answers)
	case "before the answer arrives":
		err := c.Store.Claim(ctx, claims, answers)
		c.cancel()
		clear(answers)
		return errors.Join(err, context.Canceled)
	default:
		defer c.cancel()
		return c.Store.Claim(ctx, claims, answers)
	}
}

// TestCancelledClaims: a caller gives up at each point of its claim, on a key that is
// free and on one that is held. The server keeps nothing of the claim.
func TestCancelledClaims(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"before the claim is sent", "before the answer arrives", "after the answer"} {
		for _, held := range []bool{false, true} {
			t.Run(fmt.Sprint(at, ", held: ", held), func(t *testing.T) {
				t.Parallel()
				s := open(t, ownURL(), nil)
				holder := lock("k")
				if held {
					mustGrant(t, s, holder)
				}
				ctx, cancel := context.WithCancel(t.Context())
				c := newClient(t, &cancelling{s, at, cancel}, &dibs.Options{Namespace: "test"})
				lease, err := c.Acquire(ctx, "k", nil)
				switch {
				case err == nil && !held:
					testkit.Check(t, lease.Release())
				case !errors.Is(err, context.Canceled):
					t.Errorf("it was answered %v, %v", lease, err)
				}
				if held {
					testkit.Eventually(t, "no caller waits", func() bool { return waitersOf(t, s, holder.Key) == 0 })
					mustSettle(t, s, holder, store.Release)
				}
				testkit.Eventually(t, "nothing is left", func() bool { return len(leftover(t, sharedRedis(), s.Prefix())) == 0 })
			})
		}
	}
}

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
