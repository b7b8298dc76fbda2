package pgstore

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/storetest"
)

// bySQL is a store that claims, renews and settles by the public functions of SQL, a statement an
// element. It leaves to the store in Go what they do not do: Look, Reserve, and claims of reserved places.
type bySQL struct {
	store.Inspector
	store.Pruner
	other *Store
	pool  *pgxpool.Pool
}

func openBySQL(t testing.TB, url string, o *Options) *bySQL {
	t.Helper()
	other := open(t, url, o)
	s := &bySQL{Inspector: other, Pruner: other, other: other}
	config, err := pgxpool.ParseConfig(url)
	testkit.Must(t, err)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // a pooler may be in between
	config.MaxConns = 8
	s.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), config)
	testkit.Must(t, err)
	t.Cleanup(s.pool.Close)
	return s
}

// ask carries a statement out, again if it was rolled back because of another one, and returns the
// error with its meaning.
func (s *bySQL) ask(ctx context.Context, sql string, args []any, to ...any) error {
	err := try(ctx, func() error {
		err := s.pool.QueryRow(ctx, s.other.names.sql(sql), args...).Scan(to...)
		if conflicts(err) {
			return undone{err}
		}
		return err
	})
	switch {
	case code(err) == stateLost:
		return store.ErrLost
	case code(err) == "DIBS5":
		return store.ErrQueueFull
	}
	return err
}

// alone splits the errors of an element from those of a call.
func alone(err error) (element, call error) {
	if err == nil || errors.Is(err, store.ErrLost) || errors.Is(err, store.ErrQueueFull) || errors.Is(err, ErrLocked) || code(err) == "22023" {
		return err, nil
	}
	return nil, err
}

var text = base64.StdEncoding.EncodeToString

func span(d time.Duration) any {
	if d == 0 {
		return nil
	}
	return interval(d)
}

func bytesOf(s *string) []byte {
	if s == nil {
		return nil
	}
	b, _ := base64.StdEncoding.DecodeString(*s)
	return b
}

func (s *bySQL) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	for i := range claims {
		c := &claims[i]
		var err error
		if c.Mode >= store.Reserve || !c.From.IsZero() {
			err = s.other.Claim(ctx, claims[i:i+1], answers[i:i+1])
		} else if answers[i].Err = c.Validate(); answers[i].Err == nil {
			answers[i], err = s.claim(ctx, c)
			answers[i].Err, err = alone(err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *bySQL) claim(ctx context.Context, c *store.Claim) (a store.Answer, err error) {
	key, token := text([]byte(c.Key.Name)), hex.EncodeToString(c.Token[:])
	stay, print := any(nil), any(nil)
	if c.Mode == store.Queue {
		stay = span(c.Stay)
	}
	if !c.Fingerprint.IsZero() {
		print = hex.EncodeToString(c.Fingerprint[:])
	}
	var state string
	var fence, ahead, attempt, remaining, age *int64
	var record, progress *string
	err = s.ask(ctx, `SELECT state, fence, (extract(epoch FROM remaining) * 1000000)::bigint, ahead, attempt, record, (extract(epoch FROM age) * 1000000)::bigint, progress
		FROM @claim($1, $2, $3::text::interval, $4::text::interval, $5, $6, $7, $8::text::interval, $9, $10, $11, 'base64')`,
		[]any{key, token, interval(c.TTL), stay, c.Permits, c.Weight, print, interval(c.MaxAge), c.AtMostOnce, text([]byte(c.Owner.String())), c.Key.Namespace},
		&state, &fence, &remaining, &ahead, &attempt, &record, &age, &progress)
	if err != nil {
		return a, err
	}
	n := func(p *int64) int64 {
		if p == nil {
			return 0
		}
		return *p
	}
	a.State = map[string]store.State{"granted": store.Granted, "held": store.Held, "done": store.Done, "mismatch": store.Mismatch, "unknown": store.Unknown}[state]
	a.Fence, a.Attempt, a.Progress, a.Ahead = uint64(n(fence)), int(n(attempt)), bytesOf(progress), int(n(ahead))
	switch a.State {
	case store.Held:
		a.Left, a.Queued = engine.Duration(n(remaining)), c.Mode == store.Queue
	case store.Done:
		a.Record = store.Record{Data: bytesOf(record), Age: engine.Duration(n(age)), Left: engine.Duration(n(remaining))}
	}
	if a.State == store.Held && c.Mode == store.Try || a.State == store.Unknown { // whether it has a place, and the ID
		look, answers := *c, make([]store.Answer, 1)
		look.Mode = store.Look
		err = s.other.Claim(ctx, []store.Claim{look}, answers)
		a.Queued, a.ID = answers[0].Queued, answers[0].ID
	}
	return a, err
}

func (s *bySQL) Renew(ctx context.Context, renewals []store.Renewal, errs []error) (err error) {
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
		errs[i], err = alone(s.ask(ctx, "SELECT @renew($1, $2, $3::text::interval, $4, $5, 'base64')::text",
			[]any{text([]byte(r.Key.Name)), hex.EncodeToString(r.Token[:]), interval(r.TTL), progress, r.Key.Namespace}, &none))
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *bySQL) Settle(ctx context.Context, settlements []store.Settlement, errs []error) (err error) {
	for i := range settlements {
		x := &settlements[i]
		if errs[i] = x.Validate(); errs[i] != nil {
			continue
		}
		outcome, data := []string{"release", "release", "abandon", "undo"}[x.Outcome], any(nil)
		if x.Outcome == store.Keep {
			data = text(x.Data)
		}
		var none string
		errs[i], err = alone(s.ask(ctx, "SELECT @release($1, $2, $3, $4::text::interval, $5, $6, 'base64')::text",
			[]any{text([]byte(x.Key.Name)), hex.EncodeToString(x.Token[:]), data, interval(x.Retention), outcome, x.Key.Namespace}, &none))
		if err != nil {
			return err
		}
	}
	return nil
}

// TestConformanceBySQL: leases by SQL keep the contract, beside those of the store in Go.
func TestConformanceBySQL(t *testing.T) {
	t.Parallel() // it mostly waits
	conformBySQL(t, func(server *servertest.PostgresServer) string { return server.URL() })
}

func conformBySQL(t *testing.T, url func(*servertest.PostgresServer) string) {
	storetest.Run(t, &storetest.Harness{
		New: func(trial testing.TB, turn time.Duration) *storetest.Backend {
			server, o := serverFor(trial), ownNames()
			o.pushedTTL = turn
			trial.Cleanup(func() { checkListed(trial, server, o) })
			return &storetest.Backend{
				Open:    func() store.Store { return openBySQL(trial, url(server), o) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { dropSchema(server, o) },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew:     "it reads no clock of its process",
			storetest.Notifier: "statements of SQL do not listen; they are asked again",
		},
	})
}
