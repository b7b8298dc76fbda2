package riverjobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// DefaultPatience is the default of Options.Patience.
const DefaultPatience = 2 * time.Minute

// Options configures a Mutex. nil and the zero value mean the defaults. All clients of a
// River database must use the same options for keys and places.
type Options struct {
	// Jobs are the options that do not depend on the queue. Set CrashGrace above the time
	// in which River rescues jobs of a dead worker; see the README. Default of Logger: that
	// of River's Config, or slog.Default.
	Jobs jobs.Options

	// Reserver reserves places in the transaction that inserts the job with InsertTx,
	// InsertManyTx or In: pgstore's Store.Reserver. Default: places are reserved before
	// the insert, outside its transaction.
	Reserver func(pgx.Tx) dibs.Reserver

	// Transactor begins the transactions of Commit, which also end the job's key:
	// pgstore's Store.Transactions. Default: Commit uses pool, and the key is released
	// after the commit.
	Transactor dibs.Transactor
	// Tx returns the transaction of ctx that Transactor made: pgstore.Tx. Required with
	// Transactor.
	Tx func(ctx context.Context) (pgx.Tx, bool)

	// Patience is how long a job waits in a worker before it is requeued with its place.
	// River treats a waiting job as running, so keep Patience plus the job's timeout
	// below RescueStuckJobsAfter. Default: 2 min.
	Patience time.Duration
}

// rescueRounds is how much later than RescueStuckJobsAfter River may rescue a job: its rescuer
// looks every 30 s, and the rescued job is tried again after a moment.
const rescueRounds = 35 * time.Second

// warnings returns how the numbers of a client that works jobs cannot keep the promises.
func (o *Options) warnings(config *river.Config) (all []string) {
	timeout := cmp.Or(config.JobTimeout, river.JobTimeoutDefault)
	rescue := config.RescueStuckJobsAfter
	if rescue == 0 {
		rescue = time.Hour + max(config.JobTimeout, 0) // River's default
	}
	if ordered := (o.Jobs.Policy == jobs.Requeue || o.Jobs.Policy == jobs.Wait) && !o.Jobs.Unordered; ordered && o.Jobs.CrashGrace < rescue+rescueRounds {
		all = append(all, fmt.Sprintf("riverjobs: later jobs pass a job whose worker died: River gives it to another worker after RescueStuckJobsAfter, %v, and up to %v, but Jobs.CrashGrace is %v; "+
			"set RescueStuckJobsAfter to minutes, and Jobs.CrashGrace above it", rescue, rescueRounds, o.Jobs.CrashGrace))
	}
	if o.Patience+max(timeout, 0) > rescue {
		all = append(all, fmt.Sprintf("riverjobs: River may give a job that waits or runs to a second worker: Patience, %v, and JobTimeout, %v, are together longer than RescueStuckJobsAfter, %v; "+
			"set RescueStuckJobsAfter above their sum", o.Patience, timeout, rescue))
	}
	return all
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
		return r, errors.New("riverjobs: Options.Transactor and Tx need each other: use pgstore's Store.Transactions and pgstore.Tx")
	case r.Transactor != nil && r.Jobs.Once > 0:
		return r, errors.New("riverjobs: Options.Transactor does not work with Jobs.Once; leave Once out, because Commit completes the job in its transaction")
	}
	return r, nil
}
