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

	"github.com/dibs-go/dibs/store"
)

// Renew implements store.Store, in one round trip.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	all := s.batches(len(renewals), verb{
		script: renewScript,
		head:   []string{s.names.sharded()},
		key: func(i int) (store.Key, bool) {
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
		answer:     func(i int, r *reply) { errs[i] = outcome(r) },
		fail:       func(i int, err error) { errs[i] = err },
		replicated: func(_ int, what byte) bool { return what == isDone },
	})
	return failBatches(all, errs, s.run(ctx, all))
}

// failBatches lets only the renewals of failed batches fail, because a server of a
// cluster that does not answer must not cost leases on other servers. Some renewals of a
// failed batch may have been made, which does no harm.
func failBatches(all []*batch, errs []error, err error) error {
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

// Settle implements store.Store, in one round trip.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	all := s.batches(len(settlements), verb{
		script: settleScript,
		head:   []string{s.names.sharded()},
		key: func(i int) (store.Key, bool) {
			x := &settlements[i]
			errs[i] = x.Validate()
			if errs[i] == nil && x.Outcome == store.Keep {
				errs[i] = s.fits(len(x.Data))
			}
			return x.Key, errs[i] == nil
		},
		answer: func(i int, r *reply) { errs[i] = outcome(r) },
		fail:   func(i int, err error) { errs[i] = err },
		// A record that is sent again waits for the replicas again.
		replicated: func(i int, what byte) bool { return settlements[i].Outcome == store.Keep && what == isDone },
		args:       func(args []string, i int) []string { return appendSettlement(args, &settlements[i]) },
	})
	err := s.run(ctx, all)
	if errors.Is(err, store.ErrTooLarge) {
		err = s.settleSingly(ctx, all, settlements, errs)
	}
	return err
}

// settleSingly settles elements one by one after the server refused the whole call
// because of one too large record. Nothing was done then.
func (s *Store) settleSingly(ctx context.Context, all []*batch, settlements []store.Settlement, errs []error) error {
	var failed error
	for _, b := range all {
		switch {
		case !errors.Is(b.failed, store.ErrTooLarge):
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

// appendSettlement appends the argument of one settlement; see lua/settle.lua.
func appendSettlement(args []string, x *store.Settlement) []string {
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

func (s *Store) fits(n int) error {
	if n > s.options.MaxRecord {
		return fmt.Errorf("%w: the record has %d bytes; it may have at most %d", store.ErrTooLarge, n, s.options.MaxRecord)
	}
	return nil
}

// The scripts' answers to a renewal or a settlement.
const (
	isDone = 1
	isLost = 2
)

// outcome reads the answer to a renewal or a settlement.
func outcome(r *reply) error {
	switch r.what {
	case isDone:
		return nil
	case isLost:
		return store.ErrLost
	}
	r.err = fmt.Errorf("redisstore: the script's answer is the unknown number %d", r.what)
	return nil
}
