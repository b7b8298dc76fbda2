package pgstore

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
)

// The errors of a transaction of the application.
var (
	// ErrOwnTransaction is returned by Commit and Rollback of a run's transaction.
	ErrOwnTransaction = errors.New("pgstore: dibs commits the transaction when the function has returned, and rolls it back if that returned an error; use a savepoint (Begin) for what may fail")
	// ErrAborted: a statement of the transaction failed, and the run did not return its error.
	ErrAborted = errors.New("pgstore: a statement failed, and the transaction with it: return its error, or use a savepoint (Begin) for what may fail")
	// ErrTransactionEnded: the run ended the transaction with a statement. What it did until then
	// may be committed. Its answer is not kept.
	ErrTransactionEnded = fmt.Errorf("%w (COMMIT, ROLLBACK), so its answer is not kept: remove that statement; dibs commits when the run returns, and rolls back if it returns an error", store.ErrTransactionEnded)
	// ErrOtherDatabase: the pool or transaction that was given to the store is not in the store's
	// database.
	ErrOtherDatabase = errors.New("pgstore: the transactions are not in the store's database, so the store cannot commit with them; use a pool of the database that the store was opened on, not of a replica")
)

// The SQLSTATEs that sql/transaction.sql raises.
const (
	stateLost  = "DIBS1"
	stateEnded = "DIBS2"
	stateAlike = "DIBS3"

	stateForgotten = "26000" // the statement is not prepared on this connection
)

// settleIn returns the parameters of the statement that settles in a transaction. marked says
// that markSQL has marked the transaction.
func (s *Store) settleIn(x *store.Settlement, marked bool) ([]any, error) {
	if err := remote.Validate(s.server, x); err != nil {
		return nil, err
	}
	keep := x.Outcome == store.Keep
	if !keep && x.Outcome != store.Release {
		return nil, errors.New("pgstore: a transaction can only keep or release; roll it back to abandon or undo")
	}
	proof := "deferrable"
	if marked {
		proof = "marked"
	}
	text := base64.StdEncoding.EncodeToString
	return []any{
		text([]byte(x.Key.Name)), hex.EncodeToString(x.Token[:]), keep, text(x.Data), interval(x.Retention), x.Key.Namespace, proof,
	}, nil
}

// interval writes a duration for the server.
func interval(d time.Duration) string {
	return strconv.FormatInt(engine.Micros(d), 10) + " microseconds"
}

// settleFailed returns the error of a settlement, or of the COMMIT after it, with its meaning.
// undone says that the transaction was rolled back for sure.
func settleFailed(err error, undone bool) error {
	switch state := sqlState(err); {
	case !undone:
		return explain(err)
	case state == stateLost:
		return store.ErrLost
	case state == stateEnded:
		// The statement was rolled back, but it was not in the run's transaction.
		return fmt.Errorf("%w: %w", ErrTransactionEnded, err)
	case state == "25P02":
		return fmt.Errorf("%w: %w", store.ErrRolledBack, ErrAborted)
	case state == stateForgotten:
		return fmt.Errorf("%w: %w", store.ErrRolledBack, err)
	case state == "25006":
		err = fault(ErrReadOnly, err, "the answer is written: use a read-write transaction on the primary")
	}
	return fmt.Errorf("%w: %w", store.ErrRolledBack, explain(err))
}

// sqlState returns the SQLSTATE of a server's error from any driver, or "".
func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// conflicts reports whether an error is a serialization failure or a deadlock.
func conflicts(err error) bool {
	state := sqlState(err)
	return state == "40001" || state == "40P01"
}

// markSQL marks a transaction. The mark ends with it.
const markSQL = "set local dibs.run = 'on'"

// sameness remembers that the application's connections go to the store's database.
type sameness struct {
	mu    sync.Mutex
	known bool
}

// check finds that out once. The store takes an advisory lock and tries to take it through ask,
// by the application's connection. In the same database that fails.
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
