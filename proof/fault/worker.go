package fault

import (
	"context"
	"errors"
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
			About:    "a worker pauses (SIGSTOP) until its leases have run out, and goes on with what it was at (SIGCONT)",
			Evidence: "a lease that its worker lost by pausing",
			applies:  needWorkers, strike: stop,
		},
	}
}

// needWorkers returns nil if there are worker processes.
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
