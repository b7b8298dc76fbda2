package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

func workerFaults() []*Fault {
	return []*Fault{
		{
			Name: "kill", Kind: Worker,
			About:    "a worker is killed (SIGKILL) in whatever it does, and starts again",
			Evidence: "a process that ended by the signal",
			applies:  needWorkers, strike: kill,
		},
		{
			Name: "stop", Kind: Worker,
			About:    "a worker stands still (SIGSTOP) until its leases have run out, and goes on with what it was at (SIGCONT)",
			Evidence: "a lease that its worker lost by standing still",
			applies:  needWorkers, strike: stop,
		},
		{
			Name: "worker-clock", Kind: Worker,
			About:    "a worker runs where the time since boot is an hour off, as in a container with a time namespace",
			Evidence: "a worker's process that the kernel says has such a clock",
			applies:  needTimeNamespace, strike: workerClock,
		},
	}
}

func needWorkers(t *Target) error {
	if t.Workers == nil || t.Workers.Len() == 0 {
		return errors.New("there are no worker processes")
	}
	return nil
}

func kill(_ context.Context, t *Target, r *rand.Rand) (int, error) {
	i, release, ok := t.worker(r)
	if !ok {
		return 0, nil
	}
	defer release()
	killed, err := t.Workers.Kill(i)
	if err != nil || !killed {
		return 0, err
	}
	return 1, nil
}

func stop(ctx context.Context, t *Target, r *rand.Rand) (int, error) {
	i, release, ok := t.worker(r)
	if !ok {
		return 0, nil
	}
	defer release()
	before := t.Workers.Lost(i)
	d := t.long(r)
	begin := time.Now()
	stopped, err := t.Workers.Stop(ctx, i, d)
	if err != nil || !stopped || time.Since(begin) < t.lease() {
		return 0, err
	}
	// It finds out when it runs again, and says so a moment later.
	await(evidence/3, func() bool { return t.Workers.Lost(i) > before })
	return t.Workers.Lost(i) - before, nil
}

func needTimeNamespace(t *Target) error {
	if err := needWorkers(t); err != nil {
		return err
	}
	if t.backend() == "sqlite" {
		return errors.New("the processes that share a file must share the time since boot, too; the store's Check says so, which dibs doctor prints")
	}
	return timeNamespaces()
}

// hour is how far clocks are set wrong.
const hour = time.Hour

func workerClock(ctx context.Context, t *Target, r *rand.Rand) (hits int, err error) {
	i, release, ok := t.worker(r)
	if !ok {
		return 0, nil
	}
	defer release()
	ahead := hour
	if r.IntN(2) == 0 && sinceBoot() > 2*hour {
		ahead = -hour
	}
	if err := t.Workers.Restart(i, inTimeNamespace(ahead)); err != nil {
		return 0, fmt.Errorf("starting a worker in a time namespace: %w", err)
	}
	// Long enough for it to hold leases and to see some of them end.
	rest(ctx, t.lease()+t.long(r))
	if pid := t.Workers.PID(i); pid != 0 && clockOf(pid) == ahead {
		hits = 1
	}
	if err := t.Workers.Restart(i, nil); err != nil {
		return hits, fmt.Errorf("starting a worker under the host's clock again: %w", err)
	}
	return hits, nil
}
