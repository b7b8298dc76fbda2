package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
)

const (
	// rehearsed is how many connections of each pool know what hand-overs take at least:
	// calls that meet take another one.
	rehearsed = 2
	// rehearsePause is after what time another connection is looked for while those that
	// need it are in use, and rehearseLooks how often.
	rehearsePause = 10 * time.Millisecond
	rehearseLooks = 20
	// rehearseDial bounds the making of connections for it: calls may need the one that is
	// held meanwhile.
	rehearseDial = 500 * time.Millisecond
	// rehearseLimit bounds the rehearsal on one connection, also where the process stands
	// still.
	rehearseLimit = 5 * time.Second
)

// rehearse has the server plan what the functions do, on the connections that are used
// next, once somebody waits at a reserved place: a connection plans each statement when it
// comes to it first, and that would otherwise be while it has the row of a key locked which
// many want. What is wrong with the server is told to those who make calls.
func (s *Store) rehearse() {
	for _, pool := range []*pgxpool.Pool{s.front, s.back} {
		s.rehearseIn(pool)
	}
}

func (s *Store) rehearseIn(pool *pgxpool.Pool) {
	warm := int32(0)
	// Calls that meet a rehearsal make new connections, and have the others.
	for looks := 0; looks < rehearseLooks && (warm < rehearsed || warm < pool.Stat().TotalConns()); looks++ {
		cold, err := s.coldOf(pool)
		switch {
		case err != nil:
			return
		case cold == nil:
			pause := time.NewTimer(rehearsePause)
			select {
			case <-pause.C:
			case <-s.life.Done():
				return
			}
		case !s.rehearseOn(cold):
			return
		default:
			warm++
		}
	}
}

// coldOf returns a connection without a rehearsal, if there is one among those that are used
// next. It fails where the server has not as many to give: calls need the others.
func (s *Store) coldOf(pool *pgxpool.Pool) (cold *pgxpool.Conn, err error) {
	ctx, cancel := context.WithTimeout(s.life, rehearseDial)
	defer cancel()
	for range rehearsed {
		conn, err := pool.Acquire(ctx)
		switch {
		case err != nil:
			if cold != nil {
				cold.Release()
			}
			return nil, err
		case cold != nil || conn.Conn().PgConn().CustomData()[rehearsal] != nil:
			defer conn.Release() // not at once: the next one is to be another
		default:
			cold = conn
		}
	}
	return cold, nil
}

// rehearsal is under what a connection remembers that it had one.
const rehearsal = "pgstore.rehearsal"

// rehearseOn takes an invented key through its life on that connection, takes that back and
// gives the connection back. It reports whether all went well.
func (s *Store) rehearseOn(conn *pgxpool.Conn) bool {
	defer conn.Release() // which closes one that is in a transaction still
	ctx, cancel := context.WithTimeout(s.life, rehearseLimit)
	defer cancel()
	c := conn.Conn().PgConn()
	for _, step := range []func() error{
		func() error { return begin(ctx, c) },
		func() error { return s.live(ctx, c) },
		func() error { return execute(ctx, c, "ROLLBACK") },
	} {
		if step() != nil {
			return false
		}
	}
	c.CustomData()[rehearsal] = true
	return true
}

// begin begins a transaction that the server ends when it hears nothing for long.
func begin(ctx context.Context, c *pgconn.PgConn) error {
	return execute(ctx, c, "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '5s'")
}

func execute(ctx context.Context, c *pgconn.PgConn, sql string) error {
	_, err := c.Exec(ctx, sql).ReadAll()
	return err
}

// live takes an invented key through its life.
func (s *Store) live(ctx context.Context, c *pgconn.PgConn) error {
	key := dibs.Key{Name: dibs.NewToken().String()}
	one := []int{0}
	claim := func(locks bool, x dibs.Claim) *call {
		x.Key, x.TTL, x.Permits = key, time.Minute, 1
		process, _ := s.waiting.address()
		params := s.claimParams(one, []dibs.Claim{x}, process, true, locks)
		return s.ask(one, []dibs.Claim{x}, make([]dibs.Answer, 1), params, new([]int))
	}
	settle := func(x dibs.Settlement) *call {
		x.Key = key
		return s.settle(one, []dibs.Settlement{x}, make([]error, 1))
	}
	places := [3]dibs.Token{dibs.NewToken(), dibs.NewToken(), dibs.NewToken()}
	workers := [3]dibs.Token{dibs.NewToken(), dibs.NewToken(), dibs.NewToken()}
	reserves := func(i int) dibs.Claim {
		return dibs.Claim{Token: places[i], Mode: dibs.Reserve, Place: time.Minute, Hold: time.Minute}
	}
	redeems := func(i int) dibs.Claim {
		return dibs.Claim{Token: workers[i], Redeems: places[i], Place: time.Minute, Hold: time.Minute}
	}
	undoes := func(i int) dibs.Settlement {
		return dibs.Settlement{Key: key, Token: workers[i], Outcome: dibs.Undo}
	}
	look := redeems(2)
	look.Mode, look.Place, look.Hold = dibs.Look, 0, 0
	for _, step := range []*call{
		claim(false, reserves(0)), claim(false, reserves(1)), claim(false, reserves(2)),
		claim(false, redeems(0)), claim(false, redeems(1)), claim(true, redeems(1)), claim(false, look),
		settle(dibs.Settlement{Token: workers[0]}),
		claim(false, redeems(1)), claim(false, redeems(2)),
		s.standDown(one, []dibs.Settlement{undoes(2)}, map[int]bool{}), settle(undoes(2)),
		settle(dibs.Settlement{Token: workers[1]}),
		claim(false, redeems(2)), settle(dibs.Settlement{Token: workers[2]}),
	} {
		if _, err := s.on(ctx, c, step); err != nil {
			return err
		}
	}
	return nil
}
