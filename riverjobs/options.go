package riverjobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// DefaultPatience is the default of Options.Patience.
const DefaultPatience = 5 * time.Minute

// Options say how jobs take turns. The zero value, and nil, mean the defaults. All clients of a
// River database have the same, as far as keys and places are concerned.
type Options struct {
	// Jobs is what is the same for all queues: the policy, what happens to the place of a job that
	// failed, limits, Observe. Its Recovery should be longer than River takes to rescue the jobs of
	// a dead worker; see the README.
	Jobs jobs.Options

	// Reserver makes places be taken in the transaction that inserts the job, when that is inserted
	// with InsertTx, InsertManyTx or In: pgstore's Store.Reserver. Default: they are taken outside
	// of it, before the job is inserted.
	Reserver func(pgx.Tx) dibs.Reserver

	// Transactor makes the transactions of Commit, which end the job's key together with what they
	// commit: pgstore's Store.Transactions. Default: they are River's own, and the key is given up
	// after them.
	Transactor dibs.Transactor
	// Tx returns the transaction that ctx carries, of those that Transactor makes: pgstore.Tx.
	// Required with Transactor.
	Tx func(ctx context.Context) (pgx.Tx, bool)

	// Patience is how long a job waits for its turn in a worker at a time. Then it comes back, at
	// its place. River takes a job that waits for one that runs: so Patience and the job's own
	// timeout have to be less than RescueStuckJobsAfter together. Default: 5 min.
	Patience time.Duration
}

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	r.Patience = cmp.Or(r.Patience, DefaultPatience)
	switch {
	case r.Patience < 0:
		return r, fmt.Errorf("riverjobs: Options.Patience is %v; it must not be negative", r.Patience)
	case (r.Transactor == nil) != (r.Tx == nil):
		return r, errors.New("riverjobs: Options.Transactor and Tx need one another: give pgstore's Store.Transactions and pgstore.Tx")
	case r.Transactor != nil && r.Jobs.Once > 0:
		return r, errors.New("riverjobs: Options.Transactor cannot be with Jobs.Once: what Commit commits is done once, and River knows it")
	}
	return r, nil
}
