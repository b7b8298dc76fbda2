package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
)

func dataFaults() []*Fault {
	return []*Fault{
		{
			Name: "script-flush", Kind: Data, Destroys: true,
			About:    "a Redis forgets the scripts that it was given",
			Evidence: "a script that was asked for and that the server says it does not know",
			gate:     serverGate, applies: needRedis, strike: flushScripts,
		},
		{
			Name: "flushall", Kind: Data, Destroys: true, Forgets: true,
			About:    "a Redis is emptied",
			Evidence: "a server that had keys and has lost them",
			gate:     serverGate, applies: needRedis, strike: flushAll,
		},
	}
}

// needRedis returns nil if the store is a Redis at one address.
func needRedis(t *Target) error {
	if t.backend() != "redis" {
		return errors.New("it is done to a Redis")
	}
	_, err := address(t.URL)
	return err
}

func flushScripts(ctx context.Context, t *Target, _ *rand.Rand) (int, error) {
	w, err := t.meetRedis(ctx)
	if err != nil {
		return 0, err
	}
	defer w.close()
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*look)
	defer cancel()
	before, err := w.unscripted(looking)
	if err != nil {
		return 0, err
	}
	if err := w.do(looking, "SCRIPT", "FLUSH", "SYNC").Error(); err != nil {
		return 0, err
	}
	// It hits the next client.
	after := before
	await(evidence, func() bool {
		after, err = w.unscripted(looking)
		return err != nil || after > before || ctx.Err() != nil
	})
	return after - before, err
}

func flushAll(ctx context.Context, t *Target, _ *rand.Rand) (int, error) {
	w, err := t.meetRedis(ctx)
	if err != nil {
		return 0, err
	}
	defer w.close()
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), look)
	defer cancel()
	// In one step, so that nothing comes or goes in between.
	var replies []int64
	for _, reply := range w.client.DoMulti(looking,
		w.client.B().Arbitrary("MULTI").Build(),
		w.client.B().Arbitrary("DBSIZE").Build(),
		w.client.B().Arbitrary("FLUSHALL", "SYNC").Build(),
		w.client.B().Arbitrary("DBSIZE").Build(),
		w.client.B().Arbitrary("EXEC").Build(),
	) {
		if err := reply.Error(); err != nil {
			return 0, err
		}
		all, err := reply.ToArray()
		if err != nil {
			continue // OK or QUEUED
		}
		for _, m := range all {
			if n, err := m.AsInt64(); err == nil {
				replies = append(replies, n)
			}
		}
	}
	if len(replies) != 2 {
		return 0, fmt.Errorf("the server answered a transaction with %d sizes", len(replies))
	}
	if replies[0] == 0 || replies[1] != 0 {
		return 0, nil
	}
	return 1, nil
}
