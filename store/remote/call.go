package remote

import (
	"context"
	"errors"
	"slices"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// call is a call about the elements of one slice.
type call struct {
	keys  []string         // of each element
	valid []int            // the elements that are made
	size  func(i int) int  // of the data of an element, in bytes; nil: none has any
	fail  func(int, error) // answers an element

	// plain makes the elements of part that are plain and returns the others; rest makes
	// those. Each does all or nothing.
	plain func(ctx context.Context, part []int) (rest []int, err error)
	rest  func(ctx context.Context, part []int) error
}

// newCall is about those of n elements that validate returns no error of.
func newCall(n int, validate func(i int) (store.Key, error), fail func(int, error)) *call {
	c := &call{keys: make([]string, n), valid: make([]int, 0, n), fail: fail}
	for i := range n {
		k, err := validate(i)
		if fail(i, err); err == nil {
			c.valid, c.keys[i] = append(c.valid, i), engine.KeyOf(k)
		}
	}
	return c
}

// bytes is what an element adds to the text of a call, at most.
func (c *call) bytes(i int) int {
	n := 2<<10 + 8*len(c.keys[i])
	if c.size != nil {
		n += c.size(i)
	}
	return n
}

// make makes a call, in parts that the server takes. Each part is two steps, because what
// the first step did must not be done again when the second step is.
func (s *Store) make(ctx context.Context, c *call) error {
	for all := c.valid; len(all) > 0; {
		n, bytes := 0, 0
		for n < min(len(all), s.server.MaxElements) {
			if bytes += c.bytes(all[n]); n > 0 && bytes > s.server.MaxBytes {
				break
			}
			n++
		}
		var rest []int
		err := s.apart(ctx, all[:n], c, func(ctx context.Context, part []int) error {
			others, err := c.plain(ctx, part)
			if err == nil {
				rest = append(rest, others...)
			}
			return err
		})
		if err == nil && len(rest) > 0 {
			slices.Sort(rest)
			err = s.apart(ctx, rest, c, c.rest)
		}
		if err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// apart makes the call of some elements. If another transaction keeps the rows of some keys
// locked, nothing was done for any element. Then these fail alone, and the others are made
// without them. An element that is too large for the server fails alone, too.
func (s *Store) apart(ctx context.Context, part []int, c *call, run func(ctx context.Context, part []int) error) error {
	err := s.server.Try(ctx, func() error { return run(ctx, part) })
	large := errors.Is(err, store.ErrTooLarge)
	if !large && !errors.Is(err, s.server.Busy) {
		return err
	}
	if len(part) == 1 {
		c.fail(part[0], err)
		return nil
	}
	var left []int
	if !large {
		keys := make([]string, len(part))
		for n, i := range part {
			keys[n] = c.keys[i]
		}
		slices.Sort(keys)
		stuck, wrong := s.server.Stuck(ctx, slices.Compact(keys))
		if wrong != nil {
			return wrong
		}
		for _, i := range part {
			if stuck[c.keys[i]] {
				c.fail(i, err)
			} else {
				left = append(left, i)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if len(left) < len(part) {
			return s.apart(ctx, left, c, run)
		}
	}
	// The element is not known: it is too large, or another transaction is about to insert
	// its row.
	for _, i := range part {
		if err := s.apart(ctx, []int{i}, c, run); err != nil {
			return err
		}
	}
	return nil
}
