package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

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
		answer: func(i int, m *rueidis.RedisMessage) (err error) {
			errs[i], err = readOutcome(m)
			return err
		},
	})
	for _, b := range all {
		for _, i := range b.indexes {
			r := &renewals[i]
			saves := "0"
			if r.Progress != nil {
				saves = "1"
			}
			b.call.args = append(b.call.args,
				string(r.Token[:]), strconv.FormatUint(micros(r.TTL), 10), saves, string(r.Progress))
		}
	}
	return s.run(ctx, all)
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
		answer: func(i int, m *rueidis.RedisMessage) (err error) {
			errs[i], err = readOutcome(m)
			return err
		},
	})
	for _, b := range all {
		for _, i := range b.indexes {
			b.call.args = appendSettlement(b.call.args, &settlements[i])
		}
	}
	err := s.run(ctx, all)
	for _, b := range all {
		for _, i := range b.indexes {
			if b.unacknowledged && errs[i] == nil && settlements[i].Outcome == dibs.Keep {
				errs[i] = s.notReplicated() // sent again, it is found and waited for
			}
		}
	}
	return err
}

// appendSettlement appends the arguments of one settlement; see lua/settle.lua.
func appendSettlement(args []string, x *dibs.Settlement) []string {
	var b [25]byte
	b[0] = byte(x.Outcome)
	copy(b[1:], x.Token[:])
	binary.BigEndian.PutUint64(b[17:], micros(x.Retention))
	return append(args, string(b[:]), string(x.Data))
}

// fits returns an error when a record of n bytes is too large.
func (s *Store) fits(n int) error {
	if n > s.options.MaxRecord {
		return fmt.Errorf("%w: the record has %d bytes; it may have at most %d", dibs.ErrFull, n, s.options.MaxRecord)
	}
	return nil
}

// readOutcome reads what became of a renewal or a settlement. The second error
// is one of the call.
func readOutcome(m *rueidis.RedisMessage) (answer, err error) {
	if m.IsArray() {
		f, err := fields(m)
		if err != nil {
			return nil, err
		}
		f.next()
		return element(f.text())
	}
	switch n, err := m.AsInt64(); {
	case err != nil:
		return nil, err
	case n == 1:
		return nil, nil
	case n == 2:
		return dibs.ErrLost, nil
	default:
		return nil, fmt.Errorf("redisstore: the script answered %d", n)
	}
}
