package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"

	"github.com/dibs-go/dibs"
)

const (
	// most is how many elements one transaction has, and mostBytes how many bytes of
	// records or progress, but for a single one that is larger.
	most      = 256
	mostBytes = 8 << 20
)

// elements are what a call is about: those of one slice.
type elements struct {
	key  func(i int) dibs.Key
	size func(i int) int        // of its record or progress
	fail func(i int, err error) // answers it

	// plain makes the calls of those that are plain, and returns the others, and of
	// which of their keys there is more to know than a row; busy makes those. Each
	// does all or nothing.
	plain func(ctx context.Context, part []int) (rest []int, deep map[string]bool, err error)
	busy  func(ctx context.Context, part []int, deep map[string]bool) error
}

// parts makes the calls of those elements, as many of them in one as may be.
func (s *Store) parts(ctx context.Context, all []int, e *elements) error {
	for len(all) > 0 {
		n, bytes := 0, 0
		for n < len(all) && n < most {
			size := e.size(all[n]) + written(e.key(all[n]))
			if n > 0 && bytes+size > min(mostBytes, s.packet/4) {
				break
			}
			bytes += size
			n++
		}
		if err := s.part(ctx, all[:n], e); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// written is how long the text about one element is at most, but for what is large: its
// key comes several times, in hexadecimal.
func written(k dibs.Key) int { return 2<<10 + 8*(1+len(k.Namespace)+len(k.Name)) }

// part makes the calls of some elements: in two steps, because what the first one
// has done must not be done again when the second one has to be.
func (s *Store) part(ctx context.Context, part []int, e *elements) error {
	var rest []int
	deep := map[string]bool{}
	err := s.apart(ctx, part, e, func(ctx context.Context, part []int) error {
		others, more, err := e.plain(ctx, part)
		if err == nil {
			rest = append(rest, others...)
			maps.Copy(deep, more)
		}
		return err
	})
	if err != nil || len(rest) == 0 {
		return err
	}
	slices.Sort(rest)
	return s.apart(ctx, rest, e, func(ctx context.Context, part []int) error { return e.busy(ctx, part, deep) })
}

// apart makes the call of some elements. Where somebody else keeps the rows of some
// keys locked, nothing was done for any, and they are made without these, each of
// which fails alone. What is too large for the server fails alone, too.
func (s *Store) apart(ctx context.Context, part []int, e *elements, run func(ctx context.Context, part []int) error) error {
	err := try(ctx, func() error { return run(ctx, part) })
	large := errors.Is(err, dibs.ErrTooLarge)
	if !large && !errors.Is(err, ErrLocked) {
		return err
	}
	if len(part) == 1 {
		e.fail(part[0], err)
		return nil
	}
	if large {
		return s.oneByOne(ctx, part, e, run)
	}
	stuck, wrong := s.stuck(ctx, part, e)
	if wrong != nil {
		return wrong
	}
	left := part[:0:0]
	for _, i := range part {
		if stuck[keyOf(e.key(i))] {
			e.fail(i, err)
		} else {
			left = append(left, i)
		}
	}
	if len(left) < len(part) {
		if len(left) == 0 {
			return nil
		}
		return s.apart(ctx, left, e, run)
	}
	// Nobody can see who it is: a row that somebody is about to insert.
	return s.oneByOne(ctx, part, e, run)
}

func (s *Store) oneByOne(ctx context.Context, part []int, e *elements, run func(ctx context.Context, part []int) error) error {
	for _, i := range part {
		if err := s.apart(ctx, []int{i}, e, run); err != nil {
			return err
		}
	}
	return nil
}

// stuck returns which of the elements' keys somebody else has locked.
func (s *Store) stuck(ctx context.Context, part []int, e *elements) (map[string]bool, error) {
	all := map[string]bool{}
	for _, i := range part {
		all[keyOf(e.key(i))] = true
	}
	keys := sorted(all)
	stuck := map[string]bool{}
	ask := &script{}
	ask.raw(s.names.sql("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k IN (")).keys(keys).raw(")")
	ask.asks(func(r *reading) error { stuck[r.string()] = true; return r.err })
	ask.raw(s.names.sql("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k IN (")).keys(keys).raw(") ORDER BY k FOR UPDATE SKIP LOCKED")
	ask.asks(func(r *reading) error { delete(stuck, r.string()); return r.err })
	err := use(ctx, s.back, func(c session) error { return c.run(ctx, ask) })
	return stuck, explain(err)
}

// work is a transaction on some keys: they are loaded, do changes them, and what is
// different then is written.
func (s *Store) work(ctx context.Context, db *sql.DB, b *batch, deep map[string]bool, do func() error) error {
	err := use(ctx, db, func(c session) error {
		b.on = c
		first := begins + ";"
		if b.how == looking {
			first = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;SET SESSION wait_timeout=5;START TRANSACTION READ ONLY;"
		}
		if err := b.load(ctx, first, deep); err != nil {
			return err
		}
		if err := do(); err != nil {
			return err
		}
		last := &script{}
		b.write(last)
		last.raw("COMMIT;" + ends).done()
		return c.run(ctx, last)
	})
	if err == nil && b.how != looking {
		for _, k := range b.keys {
			s.waiting.told(b.states[k].turns)
		}
	}
	return err
}
