package pgstore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/store"
)

const reserveInSQL = "SELECT pg_catalog.bool_and(@reserve_in(c.key, c.place_ttl::interval, c.grace::interval, c.namespace, c.owner, 'base64', c.token, $1::text) IS NOT NULL)" +
	" FROM pg_catalog.json_to_recordset($2::json) AS c (key text, place_ttl text, grace text, namespace text, owner text, token text)"

// Reserver reserves places in a transaction, for Client.ReserveIn. A job that the transaction
// inserts and its place are committed together or not at all. The user of the transaction needs
// no rights on the store's tables, but EXECUTE on one function; see the README. A transaction
// pooler may be in between.
//
// It costs one statement, which locks nothing of the key, so the transaction may stay open for
// long. The places have the order in which they were reserved, whenever their transactions commit.
// Options.MaxWaiters does not count here.
//
// Reserve returns ErrOtherDatabase if the transaction is not in the store's database. It has done
// nothing then, and the transaction can go on. After other errors of the server it cannot.
func (s *Store) Reserver(tx pgx.Tx) store.Reserver { return &reserver{s, inPgx(tx)} }

// SQLReserver is Reserver for database/sql.
func (s *Store) SQLReserver(tx *sql.Tx) store.Reserver { return &reserver{s, inSQL(tx)} }

// reserver reserves places in the transaction that ask queries.
type reserver struct {
	s   *Store
	ask txQuery
}

// txQuery queries one value in a transaction of the application; nil: there is none.
type txQuery func(ctx context.Context, sql string, to any, args ...any) error

func inPgx(tx pgx.Tx) txQuery {
	if tx == nil {
		return nil
	}
	return func(ctx context.Context, sql string, to any, args ...any) error {
		return tx.QueryRow(ctx, sql, args...).Scan(to)
	}
}

func inSQL(tx *sql.Tx) txQuery {
	if tx == nil {
		return nil
	}
	return func(ctx context.Context, sql string, to any, args ...any) error {
		return tx.QueryRowContext(ctx, sql, args...).Scan(to)
	}
}

// reservation has the parameters of reserve_in.
type reservation struct {
	Key       []byte `json:"key"`
	PlaceTTL  string `json:"place_ttl"`
	Grace     string `json:"grace"`
	Namespace string `json:"namespace"`
	Owner     []byte `json:"owner"`
	Token     string `json:"token"`
}

// Reserve implements store.Reserver, with one statement.
func (r *reserver) Reserve(ctx context.Context, claims []store.Claim) error {
	if r.ask == nil {
		return errors.New("pgstore: Reserver was given no transaction")
	}
	if err := r.s.server.Usable(ctx); err != nil {
		return err
	}
	if len(claims) == 0 {
		return nil
	}
	all := make([]reservation, len(claims))
	for i := range claims {
		c := &claims[i]
		if c.Mode != store.Reserve {
			return fmt.Errorf("pgstore: Claim.Mode is %d; a transaction can only reserve places, with dibs.Reserve", c.Mode)
		}
		if err := c.Validate(); err != nil {
			return err
		}
		all[i] = reservation{
			Key: []byte(c.Key.Name), PlaceTTL: interval(c.PlaceTTL), Grace: interval(c.Grace), Namespace: c.Key.Namespace,
			Owner: []byte(c.Owner.String()), Token: hex.EncodeToString(c.Token[:]),
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err // it cannot be
	}
	return r.reserve(ctx, string(text))
}

// reserve reserves the places.
func (r *reserver) reserve(ctx context.Context, claims string) error {
	return r.s.same(ctx, func(store string) (same bool, err error) {
		err = r.ask(ctx, r.s.names.sql(reserveInSQL), &same, store, claims)
		return same, inFailed(err, "a place is written")
	})
}

// same has do a statement in a transaction of the application, which says whether it ran in the
// store with that identity.
func (s *Store) same(ctx context.Context, do func(store string) (bool, error)) (err error) {
	for id := s.identity.Load(); ; id = nil {
		fresh := id == nil
		if fresh {
			if id, err = s.identify(ctx); err != nil {
				return err
			}
		}
		switch same, err := do(*id); {
		case err != nil:
			return err
		case same:
			return nil
		case fresh:
			return ErrOtherDatabase
		}
		// The tables may be new.
	}
}

// identify reads the identity of the store.
func (s *Store) identify(ctx context.Context) (*string, error) {
	var id string
	if err := s.front.QueryRow(ctx, s.names.sql("SELECT id::text FROM @meta"), pgx.QueryExecModeExec).Scan(&id); err != nil {
		return nil, explain(err)
	}
	s.identity.Store(&id)
	return &id, nil
}

// inFailed returns the error of a statement in a transaction of the application with its meaning.
func inFailed(err error, why string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("pgstore: the transaction is over: %w", err)
	case sqlState(err) == "25P02":
		return fmt.Errorf("%w: %w", ErrAborted, err)
	case sqlState(err) == "25006":
		return fault(ErrReadOnly, err, why+": use a read-write transaction on the primary")
	}
	return explain(err)
}
