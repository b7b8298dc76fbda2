// Package bysql is a store of tests that speaks SQL only: it claims, renews and settles by the public
// functions of a store in PostgreSQL, as a program in another language does, a statement an element.
package bysql

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// Other is the store in Go on the same tables. It does what the functions do not: Look, Reserve, claims of
// reserved places, and what operators do.
type Other interface {
	store.Store
	store.Inspector
	store.Pruner
}

// Store is a store.Store. It does not listen, so its claims are asked again.
type Store struct {
	store.Inspector
	store.Pruner
	other  Other
	db     *sql.DB
	prefix string
}

// New returns a Store on the functions whose names begin with the prefix: "public"."dibs_.
func New(db *sql.DB, prefix string, other Other) *Store {
	return &Store{Inspector: other, Pruner: other, other: other, db: db, prefix: prefix}
}

// ask carries a statement out, again if it was rolled back because of another one. element is an error of this
// element alone, call one of the call, whose outcome is unknown.
func (s *Store) ask(ctx context.Context, function, columns, parameters string, args []any, to ...any) (element, call error) {
	for {
		err := s.db.QueryRowContext(ctx, "SELECT "+columns+" FROM "+s.prefix+function+`"(`+parameters+") AS x", args...).Scan(to...)
		e, _ := errors.AsType[interface {
			error
			SQLState() string
		}](err)
		if e == nil {
			return nil, err
		}
		switch e.SQLState() {
		case "40001", "40P01":
			if ctx.Err() == nil {
				continue
			}
		case "DIBS1":
			return store.ErrLost, nil
		case "DIBS5":
			return store.ErrQueueFull, nil
		case "55P03":
			return store.ErrBusy, nil
		case "22023":
			return err, nil
		}
		return nil, err
	}
}

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) (err error) {
	for i := range claims {
		c, a := &claims[i], &answers[i]
		if c.Mode >= store.Reserve || !c.From.IsZero() {
			err = s.other.Claim(ctx, claims[i:i+1], answers[i:i+1])
		} else if a.Err = c.Validate(); a.Err == nil {
			err = s.claim(ctx, c, a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var states = map[string]store.State{"granted": store.Granted, "held": store.Held, "done": store.Done, "mismatch": store.Mismatch, "unknown": store.Unknown}

func (s *Store) claim(ctx context.Context, c *store.Claim, a *store.Answer) (err error) {
	placeTTL, fingerprint := any(nil), any(nil)
	if c.Mode == store.Queue {
		placeTTL = interval(c.PlaceTTL)
	}
	if !c.Fingerprint.IsZero() {
		fingerprint = hex.EncodeToString(c.Fingerprint[:])
	}
	var state string
	var fence, ahead, attempt, remaining, age int64
	var record, progress sql.NullString
	const micros = "coalesce((extract(epoch FROM x.%) * 1000000)::bigint, 0)"
	a.Err, err = s.ask(ctx, "claim", "x.state, coalesce(x.fence, 0), "+strings.Replace(micros, "%", "remaining", 1)+
		", coalesce(x.ahead, 0), coalesce(x.attempt, 0), x.record, "+strings.Replace(micros, "%", "age", 1)+", x.progress",
		"$1::text, $2::text, $3::text::interval, $4::text::interval, $5::int, $6::int, $7::text, $8::text::interval, $9::boolean, $10::text, $11::text, 'base64'",
		[]any{
			text([]byte(c.Key.Name)), token(c.Token), interval(c.TTL), placeTTL, c.Permits, c.Weight, fingerprint, interval(c.MaxAge), c.AtMostOnce,
			text([]byte(c.Owner.String())), c.Key.Namespace,
		},
		&state, &fence, &remaining, &ahead, &attempt, &record, &age, &progress)
	if err != nil || a.Err != nil {
		return err
	}
	switch a.State = states[state]; a.State {
	case store.Granted:
		a.Fence, a.Attempt, a.Progress = uint64(fence), int(attempt), data(progress)
	case store.Held:
		a.Fence, a.Left, a.Ahead, a.Queued = uint64(fence), engine.Duration(remaining), int(ahead), c.Mode == store.Queue
	case store.Done:
		a.Record = store.Record{Data: data(record), Age: engine.Duration(age), Left: engine.Duration(remaining)}
	}
	if a.State == store.Held && c.Mode == store.Try || a.State == store.Unknown { // whether it has a place, and the ID
		look, answers := *c, make([]store.Answer, 1)
		look.Mode = store.Look
		err = s.other.Claim(ctx, []store.Claim{look}, answers)
		a.Queued, a.ID = answers[0].Queued, answers[0].ID
	}
	return err
}

// Renew implements store.Store.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal, errs []error) (err error) {
	for i := range renewals {
		r := &renewals[i]
		if errs[i] = r.Validate(); errs[i] != nil {
			continue
		}
		var progress any
		if r.Progress != nil {
			progress = text(r.Progress)
		}
		var none string
		errs[i], err = s.ask(ctx, "renew", "x::text", "$1::text, $2::text, $3::text::interval, $4::text, $5::text, 'base64'",
			[]any{text([]byte(r.Key.Name)), token(r.Token), interval(r.TTL), progress, r.Key.Namespace}, &none)
		if err != nil {
			return err
		}
	}
	return nil
}

var outcomes = [...]string{store.Release: "release", store.Keep: "release", store.Abandon: "abandon", store.Undo: "undo"}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement, errs []error) (err error) {
	for i := range settlements {
		x := &settlements[i]
		if errs[i] = x.Validate(); errs[i] != nil {
			continue
		}
		var record any
		if x.Outcome == store.Keep {
			record = text(x.Data)
		}
		var none string
		errs[i], err = s.ask(ctx, "release", "x::text", "$1::text, $2::text, $3::text, $4::text::interval, $5::text, $6::text, 'base64'",
			[]any{text([]byte(x.Key.Name)), token(x.Token), record, interval(x.Retention), outcomes[x.Outcome], x.Key.Namespace}, &none)
		if err != nil {
			return err
		}
	}
	return nil
}

var text = base64.StdEncoding.EncodeToString

func token(t store.Token) string { return hex.EncodeToString(t[:]) }

func interval(d time.Duration) string {
	return strconv.FormatInt(engine.Micros(d), 10) + " microseconds"
}

// data reads what text wrote. NULL is nil.
func data(s sql.NullString) []byte {
	if !s.Valid {
		return nil
	}
	b, _ := base64.StdEncoding.DecodeString(s.String)
	return b
}
