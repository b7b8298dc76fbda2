package mysqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
)

// Claim implements dibs.Store.
func (s *Store) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	start := time.Now()
	e := newCall(len(claims), func(i int) (dibs.Key, error) { return claims[i].Key, claims[i].Validate() },
		func(i int, err error) { answers[i] = dibs.Answer{Err: err} }, func(int) []byte { return nil })
	e.Plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.claimPlain(ctx, part, e.Keys, claims, answers)
	}
	e.Rest = func(ctx context.Context, part []int) error {
		o := &engine.Terms{MaxWaiters: s.options.MaxWaiters, Process: s.waiting.process()}
		how, wants := looking, engine.Tokens{}
		for _, i := range part {
			c := &claims[i]
			if c.Mode != dibs.Look {
				how = creating
			}
			wants[e.Keys[i]] = append(wants[e.Keys[i]], c.Token, c.From)
		}
		return s.work(ctx, s.front, how, wants, func(b *engine.Batch) {
			for _, i := range part {
				answers[i] = dibs.Answer{}
				b.State(e.Keys[i]).Claim(&claims[i], o, &answers[i])
			}
		})
	}
	err := s.call(ctx, e)
	if err == nil {
		s.waiting.heard(e, claims, answers, start)
	}
	return err
}

// Renew implements dibs.Store.
func (s *Store) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	e := newCall(len(renewals), func(i int) (dibs.Key, error) {
		r := &renewals[i]
		return r.Key, cmp.Or(r.Validate(), s.room(r.Progress))
	}, func(i int, err error) { errs[i] = err }, func(i int) []byte { return renewals[i].Progress })
	e.Plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.renewPlain(ctx, part, e.Keys, renewals, errs)
	}
	e.Rest = func(ctx context.Context, part []int) error {
		return s.lose(ctx, part, e, errs, func(i int) dibs.Token { return renewals[i].Token },
			func(st *engine.State, i int) bool { return st.Renew(&renewals[i]) })
	}
	err := s.call(ctx, e)
	// The connection was cut, perhaps long ago and unnoticed. To renew twice does no harm.
	for n := 1; n < fresh && errors.Is(err, mysql.ErrInvalidConn) && ctx.Err() == nil; n++ {
		err = s.call(ctx, e)
	}
	return err
}

// Settle implements dibs.Store.
func (s *Store) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	e := newCall(len(settlements), func(i int) (dibs.Key, error) {
		x := &settlements[i]
		return x.Key, cmp.Or(x.Validate(), s.fits(x))
	}, func(i int, err error) { errs[i] = err }, func(i int) []byte { return settlements[i].Data })
	e.Plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.settlePlain(ctx, part, e.Keys, settlements, errs)
	}
	e.Rest = func(ctx context.Context, part []int) error {
		return s.lose(ctx, part, e, errs, func(i int) dibs.Token { return settlements[i].Token },
			func(st *engine.State, i int) bool { return st.Settle(&settlements[i]) })
	}
	err := s.call(ctx, e)
	s.waiting.left(settlements)
	return err
}

// lose does something with some elements, each of which has lost what it is about if that
// is false.
func (s *Store) lose(ctx context.Context, part []int, e *engine.Call, errs []error, token func(i int) dibs.Token, do func(st *engine.State, i int) bool) error {
	wants := engine.Tokens{}
	for _, i := range part {
		wants[e.Keys[i]] = append(wants[e.Keys[i]], token(i))
	}
	return s.work(ctx, s.back, locking, wants, func(b *engine.Batch) {
		for _, i := range part {
			if errs[i] = nil; !do(b.State(e.Keys[i]), i) {
				errs[i] = dibs.ErrLost
			}
		}
	})
}

// fits returns an error when a record is too large.
func (s *Store) fits(x *dibs.Settlement) error {
	if n := len(x.Data); x.Outcome != dibs.Keep {
		return nil
	} else if n > s.options.MaxRecord {
		return fmt.Errorf("%w: the record has %d bytes; it may have at most %d", dibs.ErrTooLarge, n, s.options.MaxRecord)
	}
	return s.room(x.Data)
}

// besides is what a script has besides one piece of data, at most.
const besides = 64 << 10

// room returns an error when the server does not take a packet with that in it.
func (s *Store) room(data []byte) error {
	n := len(data) + besides
	if n > s.packet/2 {
		for _, c := range data { // how they are written
			if slices.Contains([]byte("\x00\n\r\x1a'\"\\"), c) {
				n++
			}
		}
	}
	if n > s.packet {
		return fmt.Errorf("%w: %d bytes do not fit into the server's max_allowed_packet of %d; raise it", dibs.ErrTooLarge, len(data), s.packet)
	}
	return nil
}
