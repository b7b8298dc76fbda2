package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/dibs-go/dibs"
)

// Caller is how a store makes calls.
type Caller struct {
	Most  int   // elements of one transaction
	Bytes int   // of them together, but for a single one that is larger
	Busy  error // somebody else keeps a key's row locked: nothing was done for any element

	// Try makes a call, again where the server has undone it as a whole.
	Try func(ctx context.Context, call func() error) error
	// Stuck returns which of the keys somebody else has locked.
	Stuck func(ctx context.Context, keys []string) (map[string]bool, error)
}

// Call is a call about the elements of one slice.
type Call struct {
	Keys []string         // of each element
	Size func(i int) int  // of what is sent of it; nil: it does not matter
	Fail func(int, error) // answers it

	// Plain makes the calls of those that are plain, and returns the others; Rest makes
	// those. Each does all or nothing.
	Plain func(ctx context.Context, part []int) (rest []int, err error)
	Rest  func(ctx context.Context, part []int) error

	valid []int
}

// NewCall is about those of n elements that validate finds no fault in.
func NewCall(n int, validate func(i int) (dibs.Key, error), fail func(int, error)) *Call {
	c := &Call{Keys: make([]string, n), Fail: fail}
	for i := range n {
		k, err := validate(i)
		if fail(i, err); err == nil {
			c.valid, c.Keys[i] = append(c.valid, i), KeyOf(k)
		}
	}
	return c
}

// Valid returns the numbers of the elements.
func (c *Call) Valid() []int { return c.valid }

// Make makes a call, as many elements in one as may be: in two steps, because what the
// first one has done must not be done again when the second one has to be.
func (o *Caller) Make(ctx context.Context, c *Call) error {
	for all := c.valid; len(all) > 0; {
		n := min(len(all), o.Most)
		if c.Size != nil {
			bytes := 0
			for i, at := range all[:n] {
				if bytes += c.Size(at); i > 0 && bytes > o.Bytes {
					n = i
					break
				}
			}
		}
		var rest []int
		err := o.apart(ctx, all[:n], c, func(ctx context.Context, part []int) error {
			others, err := c.Plain(ctx, part)
			if err == nil {
				rest = append(rest, others...)
			}
			return err
		})
		if err == nil && len(rest) > 0 {
			slices.Sort(rest)
			err = o.apart(ctx, rest, c, c.Rest)
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
func (o *Caller) apart(ctx context.Context, part []int, c *Call, run func(ctx context.Context, part []int) error) error {
	err := o.Try(ctx, func() error { return run(ctx, part) })
	large := errors.Is(err, dibs.ErrTooLarge)
	if !large && !errors.Is(err, o.Busy) {
		return err
	}
	if len(part) == 1 {
		c.Fail(part[0], err)
		return nil
	}
	var left []int
	if !large {
		keys := make([]string, len(part))
		for n, i := range part {
			keys[n] = c.Keys[i]
		}
		slices.Sort(keys)
		stuck, wrong := o.Stuck(ctx, slices.Compact(keys))
		if wrong != nil {
			return wrong
		}
		for _, i := range part {
			if stuck[c.Keys[i]] {
				c.Fail(i, err)
			} else {
				left = append(left, i)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if len(left) < len(part) {
			return o.apart(ctx, left, c, run)
		}
	}
	// Nobody can see who it is: one that is too large, or a row that somebody is about to
	// insert.
	for _, i := range part {
		if err := o.apart(ctx, []int{i}, c, run); err != nil {
			return err
		}
	}
	return nil
}
