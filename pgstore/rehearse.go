package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
)

// rehearseLimit bounds the rehearsal on one connection.
const rehearseLimit = 5 * time.Second

// rehearse has the server plan what the functions do, on the connections that are used
// most, once somebody waits at a reserved place: a connection plans each statement when it comes to
// it first, and that would otherwise be while it has the row of a key locked which many
// want. What is wrong with the server is told to those who make calls.
func (s *Store) rehearse() {
	for _, p := range []struct {
		pool  *pgxpool.Pool
		conns int // two settle at once where some give up what they waited for
	}{{s.front, 1}, {s.back, 2}} {
		var conns []*pgxpool.Conn
		for range p.conns {
			if conn, err := p.pool.Acquire(s.life); err == nil {
				conns = append(conns, conn)
			}
		}
		for _, conn := range conns {
			ctx, cancel := context.WithTimeout(s.life, rehearseLimit)
			_ = s.rehearseOn(ctx, conn)
			cancel()
			conn.Release() // which closes one that is in a transaction still
		}
	}
}

// rehearseOn takes an invented key through its life, and takes that back.
func (s *Store) rehearseOn(ctx context.Context, conn *pgxpool.Conn) error {
	c := conn.Conn().PgConn()
	if _, err := c.Exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED").ReadAll(); err != nil {
		return err
	}
	key := dibs.Key{Name: dibs.NewToken().String()}
	claim := func(locks bool, x dibs.Claim) func() error {
		return func() error {
			x.Key, x.TTL, x.Permits = key, time.Minute, 1
			process, _ := s.waiting.address()
			params := s.claimParams([]int{0}, []dibs.Claim{x}, process, true, locks)
			_, err := s.on(ctx, c, s.ask([]int{0}, []dibs.Claim{x}, make([]dibs.Answer, 1), params, new([]int)))
			return err
		}
	}
	settle := func(x dibs.Settlement) func() error {
		return func() error {
			x.Key = key
			_, err := s.on(ctx, c, s.settle([]int{0}, []dibs.Settlement{x}, make([]error, 1)))
			return err
		}
	}
	places := [3]dibs.Token{dibs.NewToken(), dibs.NewToken(), dibs.NewToken()}
	workers := [3]dibs.Token{dibs.NewToken(), dibs.NewToken(), dibs.NewToken()}
	reserves := func(i int) dibs.Claim {
		return dibs.Claim{Token: places[i], Mode: dibs.Reserve, Place: time.Minute, Hold: time.Minute}
	}
	redeems := func(i int) dibs.Claim {
		return dibs.Claim{Token: workers[i], Redeems: places[i], Place: time.Minute, Hold: time.Minute}
	}
	look := redeems(2)
	look.Mode, look.Place, look.Hold = dibs.Look, 0, 0
	for _, step := range []func() error{
		claim(false, reserves(0)), claim(false, reserves(1)), claim(false, reserves(2)),
		claim(false, redeems(0)), claim(false, redeems(1)), claim(true, redeems(1)), claim(false, look),
		settle(dibs.Settlement{Token: workers[0]}),
		claim(false, redeems(1)), claim(false, redeems(2)),
		settle(dibs.Settlement{Token: workers[2], Redeems: places[2], Outcome: dibs.Undo}),
		settle(dibs.Settlement{Token: workers[1]}),
		claim(false, redeems(2)), settle(dibs.Settlement{Token: workers[2]}),
	} {
		if err := step(); err != nil {
			return err
		}
	}
	_, err := c.Exec(ctx, "ROLLBACK").ReadAll()
	return err
}
