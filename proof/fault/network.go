package fault

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/prove/wire"
)

func networkFaults() []*Fault {
	return []*Fault{
		{
			Name: "delay", Kind: Network,
			About:    "what workers send and are sent takes longer, each piece by another time",
			Evidence: "a piece that arrived late",
			applies:  needWires,
			strike: trouble(func(t *Target, r *rand.Rand) wire.Trouble {
				most := max(time.Millisecond, t.lease()/4)
				return wire.Trouble{Delay: time.Duration(r.Int64N(int64(most))), Jitter: most}
			}, func(c wire.Counts) int { return c.Late }),
		},
		{
			Name: "cut", Kind: Network,
			About:    "connections are reset, and new ones refused for a while",
			Evidence: "a connection that was reset under a call, or refused",
			applies:  needWires, strike: cut,
		},
		{
			Name: "partition", Kind: Network,
			About:    "nothing gets through, either way, and arrives when the partition ends",
			Evidence: "a piece that arrived after the partition",
			applies:  needWires,
			strike: trouble(func(*Target, *rand.Rand) wire.Trouble {
				return wire.Trouble{Hold: true}
			}, func(c wire.Counts) int { return c.Held }),
		},
		{
			Name: "lost-requests", Kind: Network,
			About:    "what is sent to the server is lost without a word; the connections are reset at the end",
			Evidence: "a request that was dropped",
			applies:  needWires,
			strike: trouble(func(*Target, *rand.Rand) wire.Trouble {
				return wire.Trouble{Lose: [2]bool{wire.Requests: true}}
			}, func(c wire.Counts) int { return c.LostRequests }),
		},
		{
			Name: "lost-replies", Kind: Network,
			About:    "the server does what it is asked, and its replies are lost; the connections are reset at the end",
			Evidence: "a reply that came and was dropped",
			applies:  needWires,
			strike: trouble(func(*Target, *rand.Rand) wire.Trouble {
				return wire.Trouble{Lose: [2]bool{wire.Replies: true}}
			}, func(c wire.Counts) int { return c.LostReplies }),
		},
		{
			Name: "lost-reply", Kind: Network,
			About:    "a few replies are lost and their connections reset at once, so that the client can ask again before its lease ends",
			Evidence: "a reply that came and was dropped",
			applies:  needWires,
			strike: trouble(func(_ *Target, r *rand.Rand) wire.Trouble {
				return wire.Trouble{LoseReply: 1 + r.IntN(8)}
			}, func(c wire.Counts) int { return c.LostReplies }),
		},
	}
}

func needWires(t *Target) error {
	if len(t.Wires) == 0 {
		if _, err := address(t.URL); err != nil {
			return err
		}
		return errors.New("the workers do not use wires")
	}
	return nil
}

// trouble returns a strike that makes a trouble for a spell on some of the wires.
func trouble(of func(*Target, *rand.Rand) wire.Trouble, hits func(wire.Counts) int) func(context.Context, *Target, *rand.Rand) (int, error) {
	return func(ctx context.Context, t *Target, r *rand.Rand) (int, error) {
		some, release := t.wires(r)
		defer release()
		before := total(some, hits)
		trouble := of(t, r)
		for _, w := range some {
			w.Set(trouble, r)
		}
		_ = backoff.Sleep(ctx, t.spell(r))
		for _, w := range some {
			w.Set(wire.Trouble{}, nil)
		}
		// What was kept back is on its way now.
		settled := total(some, hits)
		await(evidence/10, func() bool {
			last := settled
			settled = total(some, hits)
			return settled > before && settled == last
		})
		return settled - before, nil
	}
}

// cut resets the connections of some wires, and refuses new ones for a while.
func cut(ctx context.Context, t *Target, r *rand.Rand) (int, error) {
	count := func(c wire.Counts) int { return c.Closed + c.Refused }
	some, release := t.wires(r)
	defer release()
	before := total(some, count)
	// Between two calls a reset does no harm: wait until a call is under way.
	await(t.lease()/2, func() bool {
		return ctx.Err() != nil || slices.ContainsFunc(some, (*wire.Wire).Busy)
	})
	for _, w := range some {
		w.Set(wire.Trouble{Refuse: true}, r)
		w.Reset()
	}
	_ = backoff.Sleep(ctx, t.spell(r))
	for _, w := range some {
		w.Set(wire.Trouble{}, nil)
	}
	return total(some, count) - before, nil
}

func total(wires []*wire.Wire, count func(wire.Counts) int) (n int) {
	for _, w := range wires {
		n += count(w.Counts())
	}
	return n
}
