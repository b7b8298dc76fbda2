package mysqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
)

// Renew implements dibs.Store.
func (s *Store) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	all := make([]int, 0, len(renewals))
	for i := range renewals {
		errs[i] = renewals[i].Validate()
		if errs[i] == nil {
			errs[i] = s.room(renewals[i].Progress)
		}
		if errs[i] == nil {
			all = append(all, i)
		}
	}
	renew := func() error {
		return s.parts(ctx, all, &elements{
			key:  func(i int) dibs.Key { return renewals[i].Key },
			size: func(i int) int { return len(renewals[i].Progress) },
			fail: func(i int, err error) { errs[i] = err },
			plain: func(ctx context.Context, part []int) ([]int, map[string]bool, error) {
				return s.renewPlain(ctx, part, renewals, errs)
			},
			busy: func(ctx context.Context, part []int, deep map[string]bool) error {
				b := s.newBatch(nil, locking)
				for _, i := range part {
					b.want(keyOf(renewals[i].Key), renewals[i].Token)
				}
				return s.work(ctx, s.back, b, deep, func() error {
					for _, i := range part {
						errs[i] = nil
						if !b.states[keyOf(renewals[i].Key)].renew(&renewals[i]) {
							errs[i] = dibs.ErrLost
						}
					}
					return nil
				})
			},
		})
	}
	err := renew()
	// The connection was cut, perhaps long ago and unnoticed. To renew twice does no harm.
	for n := 1; n < fresh && errors.Is(err, mysql.ErrInvalidConn) && ctx.Err() == nil; n++ {
		err = renew()
	}
	return err
}

// Settle implements dibs.Store.
func (s *Store) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	all := make([]int, 0, len(settlements))
	for i := range settlements {
		x := &settlements[i]
		errs[i] = x.Validate()
		if errs[i] == nil && x.Outcome == dibs.Keep {
			errs[i] = s.fits(x.Data)
		}
		if errs[i] == nil {
			all = append(all, i)
		}
	}
	err := s.parts(ctx, all, &elements{
		key:  func(i int) dibs.Key { return settlements[i].Key },
		size: func(i int) int { return len(settlements[i].Data) },
		fail: func(i int, err error) { errs[i] = err },
		plain: func(ctx context.Context, part []int) ([]int, map[string]bool, error) {
			return s.settlePlain(ctx, part, settlements, errs)
		},
		busy: func(ctx context.Context, part []int, deep map[string]bool) error {
			b := s.newBatch(nil, locking)
			for _, i := range part {
				b.want(keyOf(settlements[i].Key), settlements[i].Token)
			}
			return s.work(ctx, s.back, b, deep, func() error {
				for _, i := range part {
					done, err := b.states[keyOf(settlements[i].Key)].settle(&settlements[i])
					if err != nil {
						return err
					}
					errs[i] = nil
					if !done {
						errs[i] = dibs.ErrLost
					}
				}
				return nil
			})
		},
	})
	s.waiting.left(settlements)
	return err
}

// fits returns an error when a record is too large.
func (s *Store) fits(data []byte) error {
	if n := len(data); n > s.options.MaxRecord {
		return fmt.Errorf("%w: the record has %d bytes; it may have at most %d", dibs.ErrTooLarge, n, s.options.MaxRecord)
	}
	return s.room(data)
}

// besides is what a script has besides one piece of data, at most.
const besides = 64 << 10

// room returns an error when the server does not take a packet with that in it.
func (s *Store) room(data []byte) error {
	n := len(data) + besides
	if n > s.packet/2 {
		for _, c := range data { // how they are written
			switch c {
			case 0, '\n', '\r', 0x1a, '\'', '"', '\\':
				n++
			}
		}
	}
	if n > s.packet {
		return fmt.Errorf("%w: %d bytes do not fit into the server's max_allowed_packet of %d; raise it", dibs.ErrTooLarge, len(data), s.packet)
	}
	return nil
}
