package pgstore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
)

// What can be wrong with a transaction that reserves places.
var (
	// ErrIsolation: places cannot be reserved in a transaction that has a snapshot of its
	// own, which does not see the queue that they are to be at the end of.
	ErrIsolation = errors.New("pgstore: places cannot be reserved in a transaction at the isolation level repeatable read or serializable, which does not see who came before: begin it at read committed, or reserve with Client.Reserve, outside of it")
)

const reserveInSQL = "SELECT @reserve_in($1::text, $2::integer, $3::text)"

// What reserve_in returns.
const (
	reserved     = 0
	anotherStore = 1
	ownSnapshot  = 2
)

// Reserver returns what reserves places in a transaction, for Client.ReserveIn: a job
// that is inserted in it has its place from the moment at which both are committed,
// and neither without the other. The user of the transaction needs no rights on the
// store's tables, but EXECUTE on one function, see the README. A transaction pooler
// may be in between.
//
// It costs one statement, in which nothing of the key is locked: the transaction may
// stay open for long. The places are taken just before COMMIT, in the order of the
// commits. There the transaction may have to wait for others that are about to commit,
// for 10 s at most; then COMMIT fails and says so, with SQLSTATE 55P03, and all is
// rolled back. A place that cannot be had then (the key's queue is full, or it is in
// use with other permits or for something else) is not taken, the server sends a
// warning, and all else is committed: who redeems it joins at the end of the queue.
//
// Reserve returns ErrIsolation at another isolation level than read committed, and
// ErrOtherDatabase when the transaction is not in the store's database: then it has
// done nothing, and the transaction can go on. After other errors of the server it
// cannot.
func (s *Store) Reserver(tx pgx.Tx) dibs.Reserver {
	if tx == nil {
		return &reserver{}
	}
	return &reserver{s: s, ask: func(ctx context.Context, sql string, args ...any) (result int, err error) {
		err = tx.QueryRow(ctx, sql, args...).Scan(&result)
		return result, err
	}}
}

// SQLReserver is Reserver for database/sql.
func (s *Store) SQLReserver(tx *sql.Tx) dibs.Reserver {
	if tx == nil {
		return &reserver{}
	}
	return &reserver{s: s, ask: func(ctx context.Context, sql string, args ...any) (result int, err error) {
		err = tx.QueryRowContext(ctx, sql, args...).Scan(&result)
		return result, err
	}}
}

// reserver reserves places in a transaction, in which it asks.
type reserver struct {
	s   *Store
	ask func(ctx context.Context, sql string, args ...any) (int, error)
}

// reservation is a claim as reserve_in reads it; a time is in microseconds.
type reservation struct {
	I           int     `json:"i"`
	Key         string  `json:"k"`
	Token       string  `json:"token"`
	Place       int64   `json:"place"`
	Hold        int64   `json:"hold"`
	Permits     int     `json:"permits"`
	MaxAge      int64   `json:"max_age"`
	Once        bool    `json:"once"`
	Fingerprint *string `json:"fingerprint"`
	Owner       string  `json:"owner"`
}

// Reserve implements dibs.Reserver, with one statement.
func (r *reserver) Reserve(ctx context.Context, claims []dibs.Claim) error {
	if r.ask == nil {
		return errors.New("pgstore: Reserver was given no transaction")
	}
	if err := r.s.usable(ctx); err != nil {
		return err
	}
	if len(claims) == 0 {
		return nil
	}
	all := make([]reservation, len(claims))
	for i := range claims {
		c := &claims[i]
		if c.Mode != dibs.Reserve {
			return fmt.Errorf("pgstore: Claim.Mode is %d; only places can be had in a transaction, with dibs.Reserve", c.Mode)
		}
		if err := c.Validate(); err != nil {
			return err
		}
		all[i] = reservation{
			I: i, Key: hex.EncodeToString(appendKey(nil, c.Key)), Token: hex.EncodeToString(c.Token[:]),
			Place: micros(c.Place), Hold: micros(c.Hold), Permits: c.Permits, MaxAge: micros(c.MaxAge), Once: c.AtMostOnce,
			Owner: hex.EncodeToString([]byte(c.Owner.String())),
		}
		if !c.Fingerprint.IsZero() {
			all[i].Fingerprint = new(hex.EncodeToString(c.Fingerprint[:]))
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err // it cannot be
	}
	return r.reserve(ctx, string(text), r.s.identity.Load())
}

// reserve asks for the places, of the store that has that identity, or nil if it is
// not known.
func (r *reserver) reserve(ctx context.Context, claims string, store *string) error {
	fresh := store == nil
	if fresh {
		var err error
		if store, err = r.s.identify(ctx); err != nil {
			return err
		}
	}
	result, err := r.ask(ctx, r.s.names.sql(reserveInSQL), *store, r.s.options.MaxWaiters, claims)
	switch {
	case err != nil:
		return reserveFailed(err)
	case result == reserved:
		return nil
	case result == ownSnapshot:
		return ErrIsolation
	case result == anotherStore && !fresh:
		return r.reserve(ctx, claims, nil) // its tables may have been made anew
	case result == anotherStore:
		return ErrOtherDatabase
	}
	return fmt.Errorf("pgstore: the server answered a reservation with %d", result)
}

// identify asks the store who it is.
func (s *Store) identify(ctx context.Context) (*string, error) {
	var id string
	if err := s.front.QueryRow(ctx, s.names.sql("SELECT id::text FROM @meta"), pgx.QueryExecModeExec).Scan(&id); err != nil {
		return nil, explain(err)
	}
	s.identity.Store(&id)
	return &id, nil
}

// reserveFailed gives the error of a reservation its meaning.
func reserveFailed(err error) error {
	switch {
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("pgstore: the transaction is over: %w", err)
	case sqlState(err) == "25P02":
		return fmt.Errorf("%w: %w", ErrAborted, err)
	case sqlState(err) == "25006":
		return &fault{is: ErrReadOnly, said: err, cure: "a place is written down: let the transaction be a read-write one, on the primary"}
	}
	return explain(err)
}
