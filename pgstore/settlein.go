package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
)

// What can be wrong with a transaction of the application.
var (
	// ErrOwnTransaction is what Commit and Rollback of a run's transaction return.
	ErrOwnTransaction = errors.New("pgstore: the transaction is the run's: it is committed when the function has returned, and rolled back if that returned an error; use a savepoint (Begin) for what may fail")
	// ErrAborted: a statement of the transaction failed, and the run went on as if
	// nothing had happened.
	ErrAborted = errors.New("pgstore: a statement failed, and the transaction with it: return its error, or use a savepoint (Begin) for what may fail")
	// ErrTransactionEnded: the run has ended the transaction by itself, with a statement. What it
	// did until then may be committed, and its answer is not kept.
	ErrTransactionEnded = fmt.Errorf("%w (COMMIT, ROLLBACK), so its answer is not kept: leave that to dibs", dibs.ErrTransactionEnded)
	// ErrOtherDatabase: what was given to Transactions, Reserver or their kin is not of
	// the database that the store is on.
	ErrOtherDatabase = errors.New("pgstore: the transactions are not in the store's database, so that nothing of the store could be committed with them; take a pool of the database that the store was opened on, and not of a replica")
)

// SQLSTATEs of sql/transaction.sql.
const (
	stateLost  = "DIBS1"
	stateEnded = "DIBS2"
	stateAlike = "DIBS3"

	stateForgotten = "26000" // the statement is not prepared any more
)

// settleIn returns what the statement that settles in a transaction is called with, which
// markSQL has marked or not.
func (s *Store) settleIn(x *dibs.Settlement, marked bool) ([]any, error) {
	if err := cmp.Or(x.Validate(), s.fits(x)); err != nil {
		return nil, err
	}
	keep := x.Outcome == dibs.Keep
	if !keep && x.Outcome != dibs.Release {
		return nil, errors.New("pgstore: a transaction keeps or releases; what is abandoned or undone is rolled back")
	}
	return []any{[]byte(engine.KeyOf(x.Key)), x.Token[:], keep, engine.Micros(x.Retention), append([]byte{}, x.Data...), marked}, nil
}

// settleFailed gives the error of a settlement, or of the COMMIT behind it, its
// meaning. undone says that all was rolled back, for sure.
func settleFailed(err error, undone bool) error {
	switch state := sqlState(err); {
	case !undone:
		return explain(err)
	case state == stateLost:
		return dibs.ErrLost
	case state == stateEnded:
		// What was rolled back is the statement, outside of the run's transaction.
		return fmt.Errorf("%w: %w", ErrTransactionEnded, err)
	case state == "25P02":
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, ErrAborted)
	case state == stateForgotten:
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, err)
	case state == "25006":
		err = fault(ErrReadOnly, err, "what is done once is written down: let the transaction be a read-write one, on the primary")
	}
	return fmt.Errorf("%w: %w", dibs.ErrRolledBack, explain(err))
}

// sqlState returns what a server calls an error, whatever the driver, or "".
func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// conflicts reports whether an error says that a transaction fell victim to another
// one: a serialization failure, or a deadlock.
func conflicts(err error) bool {
	state := sqlState(err)
	return state == "40001" || state == "40P01"
}

// catchUpLimit bounds what is done after a settlement for those who wait.
var catchUpLimit = 2 * time.Second

// catchUp sees to those whom a settlement in a transaction did not see. If it fails they
// find out by asking.
func (s *Store) catchUp(ctx context.Context, k dibs.Key) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), catchUpLimit)
	defer cancel()
	_ = s.force(ctx, k, (*engine.State).Advance)
}

// markSQL marks a transaction. The mark ends with it.
const markSQL = "set local dibs.run = 'on'"

// sameness remembers that the application's connections go to the store's database.
type sameness struct {
	mu    sync.Mutex
	known bool
}

// check finds that out, once: the store takes an advisory lock, which there is one of
// in each database, and it has to be taken there too. ask asks there.
func (n *sameness) check(ctx context.Context, s *Store, ask func(ctx context.Context, sql string) (bool, error)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known {
		return nil
	}
	number := strconv.FormatInt(rand.Int64(), 10)
	tx, err := s.front.Begin(ctx)
	if err != nil {
		return explain(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock("+number+")"); err != nil {
		return explain(err)
	}
	free, err := ask(ctx, "SELECT pg_try_advisory_xact_lock("+number+")")
	if err != nil {
		return explain(err)
	}
	if free {
		return ErrOtherDatabase
	}
	n.known = true
	return nil
}
