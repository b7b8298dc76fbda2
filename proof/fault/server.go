package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
)

// serverGate keeps the faults of the server one after the other.
const serverGate = "server"

func serverFaults() []*Fault {
	return []*Fault{
		{
			Name: "server-kill", Kind: Host, gate: serverGate, applies: needServer, strike: serverKill,
			About: "the server is killed (SIGKILL) and started again on its data", Evidence: "a server that says it was started since",
		},
		{
			Name: "server-stop", Kind: Host, gate: serverGate, applies: needServer, strike: serverStop,
			About: "the server pauses (SIGSTOP) and continues", Evidence: "a server that was asked and did not answer",
		},
		{
			Name: "server-clock", Kind: Host, Alone: true, Forgets: true, gate: serverGate, applies: needClock, strike: serverClock,
			About: "the server's clock is set back by an hour, and forward again", Evidence: "a server that says it is an hour earlier than a moment ago, or later",
		},
		{
			Name: "kill-connections", Kind: Host, gate: serverGate, applies: needSources, strike: killConnections,
			About: "the server ends connections of the workers (pg_terminate_backend, KILL, CLIENT KILL)", Evidence: "a connection that the server says is gone",
		},
	}
}

// hour is how far a clock is set wrong.
const hour = time.Hour

// needKnown returns nil for a store on one server that faults can connect to.
func needKnown(t *Target) error {
	if _, known := backends[t.backend()]; !known {
		return fmt.Errorf("it has to be a Redis, PostgreSQL, MariaDB or MySQL server, or dibs serve by http://, at one address; this is %s", t.backend())
	}
	return nil
}

func needServer(t *Target) error {
	if err := needKnown(t); err != nil {
		return err
	}
	if t.Server == nil {
		return errors.New("the server is not the run's own")
	}
	return nil
}

// starter is a Server that says which start of its process this is, because the process itself cannot.
type starter interface{ Start() string }

// start asks the server which of its starts this is.
func (t *Target) start(ctx context.Context) (start, error) {
	s, err := ask(ctx, t, witness.start)
	if by, ok := t.Server.(starter); ok {
		s.id = by.Start()
	}
	return s, err
}

func serverKill(ctx context.Context, t *Target, r *rand.Rand) (int, error) {
	before, err := t.start(ctx)
	if err != nil {
		return 0, err
	}
	t.Server.Kill()
	_ = backoff.Sleep(ctx, time.Duration(r.Int64N(int64(t.lease()*3/2))))
	t.Server.Restart()
	after, err := t.start(ctx)
	if err != nil || !after.after(before) {
		return 0, err
	}
	return 1, nil
}

// slow is how long a busy server may take to answer.
const slow = 250 * time.Millisecond

func serverStop(ctx context.Context, t *Target, r *rand.Rand) (int, error) {
	w, err := t.meet(ctx)
	if err != nil {
		return 0, err
	}
	defer w.close()
	t.Server.Pause()
	asking, stop := context.WithTimeout(ctx, max(t.spell(r), slow))
	defer stop()
	begin := time.Now()
	_, said := w.start(asking)
	silence := time.Since(begin)
	_ = backoff.Sleep(asking, time.Hour)
	t.Server.Continue()
	// Nothing came until the time was over: an error at once is something else.
	still := said != nil && silence >= slow
	if !still {
		return 0, nil
	}
	return 1, nil
}

func needClock(t *Target) error {
	if err := needServer(t); err != nil {
		return err
	}
	if t.Clock == nil {
		return errors.New("the server uses the host's clock, and other programs need that")
	}
	return nil
}

// serverClock sets the clock back by an hour, and then forward to the true time. In the other
// order, leases that were granted in between would stand for an hour, and no recovery could
// follow.
func serverClock(ctx context.Context, t *Target, r *rand.Rand) (hits int, err error) {
	for _, ahead := range []time.Duration{-hour, 0} {
		before, err := ask(ctx, t, witness.now)
		if err != nil {
			return hits, errors.Join(err, t.Clock.Step(0))
		}
		asked := time.Now()
		if err := t.Clock.Step(ahead); err != nil {
			return hits, err
		}
		after, err := ask(ctx, t, witness.now)
		if err != nil {
			return hits, errors.Join(err, t.Clock.Step(0))
		}
		if step := after.Sub(before) - time.Since(asked); (step.Abs() - hour).Abs() < time.Minute {
			hits++
		}
		if ahead != 0 {
			_ = backoff.Sleep(ctx, t.spell(r))
		}
	}
	return hits, nil
}

func needSources(t *Target) error {
	if err := needKnown(t); err != nil {
		return err
	}
	if b := t.backend(); b == "http" || b == "etcd" || b == "s3" {
		return errors.New("the server has no command that ends connections")
	}
	// The ports of the wires distinguish the run's connections from those of others.
	return needWires(t)
}

func killConnections(ctx context.Context, t *Target, r *rand.Rand) (int, error) {
	w, err := t.meet(ctx)
	if err != nil {
		return 0, err
	}
	defer w.close()
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), look)
	defer cancel()
	some, release := t.wires(r)
	defer release()
	for _, wire := range some {
		from := wire.Sources()
		r.Shuffle(len(from), func(i, k int) { from[i], from[k] = from[k], from[i] })
		from = from[:(len(from)+1)/2]
		if len(from) == 0 {
			continue
		}
		n, err := w.sever(looking, from)
		if err != nil {
			return 0, err
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, nil
}

func dataFaults() []*Fault {
	return []*Fault{
		{
			Name: "script-flush", Kind: Data, Destroys: true, gate: serverGate, applies: needRedis, strike: flushScripts,
			About: "a Redis forgets the scripts that it was given", Evidence: "a script that was asked for and that the server says it does not know",
		},
		{
			Name: "flushall", Kind: Data, Destroys: true, Forgets: true, gate: serverGate, applies: needRedis, strike: flushAll,
			About: "a Redis is emptied", Evidence: "a server that had keys and has lost them",
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
