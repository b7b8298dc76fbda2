package mysqlstore

import (
	"context"
	"errors"
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
	all  []int            // those that are valid
	keys []string         // of each element
	size func(i int) int  // of its record or progress; nil: none has one
	fail func(int, error) // answers it

	// plain makes the calls of those that are plain, and returns the others; busy makes
	// those. Each does all or nothing.
	plain func(ctx context.Context, part []int) (rest []int, err error)
	busy  func(ctx context.Context, part []int) error
}

// newElements are those that validate finds no fault in.
func newElements(n int, validate func(i int) (dibs.Key, error), fail func(int, error)) *elements {
	e := &elements{keys: make([]string, n), fail: fail}
	for i := range n {
		k, err := validate(i)
		if fail(i, err); err == nil {
			e.all, e.keys[i] = append(e.all, i), keyOf(k)
		}
	}
	return e
}

// call makes the calls of the elements, as many of them in one as may be: in two steps,
// because what the first one has done must not be done again when the second one has to be.
func (s *Store) call(ctx context.Context, e *elements) error {
	for all := e.all; len(all) > 0; {
		n, bytes := 0, 0
		for n < len(all) && n < most {
			// A key comes several times in the text, in hexadecimal.
			size := 2<<10 + 8*len(e.keys[all[n]])
			if e.size != nil {
				size += e.size(all[n])
			}
			if n > 0 && bytes+size > min(mostBytes, s.packet/4) {
				break
			}
			bytes += size
			n++
		}
		var rest []int
		err := s.apart(ctx, all[:n], e, func(ctx context.Context, part []int) error {
			others, err := e.plain(ctx, part)
			rest = append(rest, others...)
			return err
		})
		if err == nil && len(rest) > 0 {
			slices.Sort(rest)
			err = s.apart(ctx, rest, e, e.busy)
		}
		if err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
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
	var left []int
	if !large {
		stuck, wrong := s.stuck(ctx, part, e)
		if wrong != nil {
			return wrong
		}
		for _, i := range part {
			if stuck[e.keys[i]] {
				e.fail(i, err)
			} else {
				left = append(left, i)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if len(left) < len(part) {
			return s.apart(ctx, left, e, run)
		}
	}
	// Nobody can see who it is: one that is too large, or a row that somebody is about to
	// insert.
	for _, i := range part {
		if err := s.apart(ctx, []int{i}, e, run); err != nil {
			return err
		}
	}
	return nil
}

// stuck returns which of the elements' keys somebody else has locked.
func (s *Store) stuck(ctx context.Context, part []int, e *elements) (map[string]bool, error) {
	keys, stuck := sorted(alone(part, e.keys)), map[string]bool{}
	ask := s.script()
	var k string
	in(ask.raw("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k"), keys)
	ask.asks(func(r *reading) { r.scan(&k); stuck[k] = true })
	in(ask.raw("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k"), keys).raw(" ORDER BY k FOR UPDATE SKIP LOCKED")
	ask.asks(func(r *reading) { r.scan(&k); delete(stuck, k) })
	err := ask.on(ctx, s.back)
	return stuck, explain(err)
}
