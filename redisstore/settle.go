package redisstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs"
)

// Renew implements dibs.Store, in one round trip.
func (s *Store) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	all := s.batches(len(renewals), verb{
		script: renewScript,
		head:   []string{s.names.sharded()},
		key: func(i int) (dibs.Key, bool) {
			errs[i] = renewals[i].Validate()
			return renewals[i].Key, errs[i] == nil
		},
		args: func(args []string, i int) []string {
			r, saves := &renewals[i], "0"
			if r.Progress != nil {
				saves = "1"
			}
			return append(args, string(r.Token[:]), strconv.FormatUint(micros(r.TTL), 10), saves, string(r.Progress))
		},
		answer: func(i int, r *reading) { errs[i] = outcome(r) },
		fail:   func(i int, err error) { errs[i] = err },
		lasts:  func(_ int, what byte) bool { return what == isDone },
	})
	return apart(all, errs, s.run(ctx, all))
}

// apart has those renewals fail whose batch did, and no others: a server of a
// cluster that does not answer must cost nobody a lease on another. That some of
// them may have been renewed does no harm.
func apart(all []*batch, errs []error, err error) error {
	if err == nil || !slices.ContainsFunc(all, func(b *batch) bool { return b.failed == nil }) {
		return err
	}
	for _, b := range all {
		for _, i := range b.indexes {
			errs[i] = cmp.Or(b.failed, errs[i])
		}
	}
	return nil
}

// Settle implements dibs.Store, in one round trip.
func (s *Store) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	all := s.batches(len(settlements), verb{
		script: settleScript,
		head:   []string{s.names.sharded()},
		key: func(i int) (dibs.Key, bool) {
			x := &settlements[i]
			errs[i] = x.Validate()
			if errs[i] == nil && x.Outcome == dibs.Keep {
				errs[i] = s.fits(len(x.Data))
			}
			return x.Key, errs[i] == nil
		},
		answer: func(i int, r *reading) { errs[i] = outcome(r) },
		fail:   func(i int, err error) { errs[i] = err },
		// A record that is sent again is found, and waited for once more.
		lasts: func(i int, what byte) bool { return settlements[i].Outcome == dibs.Keep && what == isDone },
		args:  func(args []string, i int) []string { return appendSettlement(args, &settlements[i]) },
	})
	err := s.run(ctx, all)
	if errors.Is(err, dibs.ErrTooLarge) {
		err = s.settleApart(ctx, all, settlements, errs)
	}
	return err
}

// settleApart settles the elements of a call one by one if the server refused to read the
// call, because one of its records is too large. Nothing was done for the others.
func (s *Store) settleApart(ctx context.Context, all []*batch, settlements []dibs.Settlement, errs []error) error {
	var failed error
	for _, b := range all {
		switch {
		case !errors.Is(b.failed, dibs.ErrTooLarge):
			failed = errors.Join(failed, b.failed)
		case len(b.indexes) == 1:
			errs[b.indexes[0]] = b.failed
		default:
			for _, i := range b.indexes {
				failed = errors.Join(failed, s.Settle(ctx, settlements[i:i+1], errs[i:i+1]))
			}
		}
	}
	return failed
}

// appendSettlement appends the arguments of one settlement; see lua/settle.lua.
func appendSettlement(args []string, x *dibs.Settlement) []string {
	var retention [8]byte
	binary.BigEndian.PutUint64(retention[:], micros(x.Retention))
	var b strings.Builder
	b.Grow(25 + len(x.Data))
	b.WriteByte(byte(x.Outcome))
	b.Write(x.Token[:])
	b.Write(retention[:])
	b.Write(x.Data)
	return append(args, b.String())
}

// fits returns an error when a record of n bytes is too large.
func (s *Store) fits(n int) error {
	if n > s.options.MaxRecord {
		return fmt.Errorf("%w: the record has %d bytes; it may have at most %d", dibs.ErrTooLarge, n, s.options.MaxRecord)
	}
	return nil
}

// What became of a renewal or a settlement, as the scripts answer it.
const (
	isDone = 1
	isLost = 2
)

// outcome is what became of a renewal or a settlement.
func outcome(r *reading) error {
	switch r.what {
	case isDone:
		return nil
	case isLost:
		return dibs.ErrLost
	}
	r.err = fmt.Errorf("redisstore: the script answered %d", r.what)
	return nil
}
