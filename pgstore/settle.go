package pgstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs"
)

const (
	renewSQL     = "SELECT * FROM @renew($1, $2, $3, $4)"
	settleSQL    = "SELECT * FROM @settle($1, $2, $3, $4, $5, $6)"
	standDownSQL = "SELECT * FROM @stand_down($1, $2, $3)"
)

var (
	renewTypes = []uint32{
		pgtype.ByteaArrayOID, pgtype.ByteaArrayOID, pgtype.Int8ArrayOID, pgtype.ByteaArrayOID,
	}
	settleTypes = []uint32{
		pgtype.ByteaArrayOID, pgtype.ByteaArrayOID, pgtype.ByteaArrayOID, pgtype.Int2ArrayOID, pgtype.Int8ArrayOID, pgtype.ByteaArrayOID,
	}
	standDownTypes = []uint32{pgtype.ByteaArrayOID, pgtype.ByteaArrayOID, pgtype.ByteaArrayOID}
)

// Renew implements dibs.Store, with one statement.
func (s *Store) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	size := func(i int) int { return len(renewals[i].Progress) }
	valid := func(i int) error { return renewals[i].Validate() }
	key := func(i int) dibs.Key { return renewals[i].Key }
	return s.parts(ctx, len(renewals), size, errs, valid, key, func(part []int) *call {
		n := len(part)
		k, token := newArray(pgtype.ByteaOID, n, 32), newArray(pgtype.ByteaOID, n, 16)
		ttl, progress := newArray(pgtype.Int8OID, n, 8), newArray(pgtype.ByteaOID, n, 0)
		for _, i := range part {
			r := &renewals[i]
			k.key(r.Key)
			token.bytes(r.Token[:])
			ttl.duration(r.TTL)
			progress.bytes(r.Progress)
		}
		return those(s.renewals, part, errs, k, token, ttl, progress)
	})
}

// Settle implements dibs.Store, with one statement; with another one before it for those
// that give up waiting at a place.
func (s *Store) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	left, err := s.giveUp(ctx, settlements)
	if err != nil {
		return err
	}
	valid := func(i int) error {
		if left[i] {
			return dibs.ErrLost // it never had the key
		}
		x := &settlements[i]
		if err := x.Validate(); err != nil || x.Outcome != dibs.Keep {
			return err
		}
		return s.fits(len(x.Data))
	}
	size := func(i int) int { return len(settlements[i].Data) }
	key := func(i int) dibs.Key { return settlements[i].Key }
	err = s.parts(ctx, len(settlements), size, errs, valid, key, func(part []int) *call { return s.settle(part, settlements, errs) })
	s.waiting.left(settlements)
	return err
}

// settle is the call of those settlements.
func (s *Store) settle(part []int, settlements []dibs.Settlement, errs []error) *call {
	n := len(part)
	k, token := newArray(pgtype.ByteaOID, n, 32), newArray(pgtype.ByteaOID, n, 16)
	outcome, retention := newArray(pgtype.Int2OID, n, 2), newArray(pgtype.Int8OID, n, 8)
	redeems, data := newArray(pgtype.ByteaOID, n, 0), newArray(pgtype.ByteaOID, n, 0)
	for _, i := range part {
		x := &settlements[i]
		k.key(x.Key)
		token.bytes(x.Token[:])
		redeems.token(&dibs.Token{})
		outcome.int16(int16(x.Outcome))
		retention.duration(x.Retention)
		switch {
		case x.Outcome != dibs.Keep:
			data.bytes(nil)
		case x.Data == nil:
			data.bytes([]byte{})
		default:
			data.bytes(x.Data)
		}
	}
	return those(s.settlements, part, errs, k, token, redeems, outcome, retention, data)
}

// giveUp gives up, without a lock on their keys, those waits at places that were not
// granted, and returns which. The others are settled as all are; so is each while a claim
// may be under way in the server of which nothing was heard: it may wait for the key's row,
// and what ends it waits there behind it.
func (s *Store) giveUp(ctx context.Context, settlements []dibs.Settlement) (left map[int]bool, err error) {
	if process, _ := s.waiting.address(); process == 0 || s.unheard.is() {
		return nil, nil
	}
	left = map[int]bool{}
	var those []int
	for part := range slices.Chunk(those, most) {
		if err := s.run(ctx, s.back, s.standDown(part, settlements, left)); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// standDown is the call that gives up those waits, and notes which it did.
func (s *Store) standDown(part []int, settlements []dibs.Settlement, left map[int]bool) *call {
	n := len(part)
	k := newArray(pgtype.ByteaOID, n, 32)
	token, redeems := newArray(pgtype.ByteaOID, n, 16), newArray(pgtype.ByteaOID, n, 16)
	for _, i := range part {
		x := &settlements[i]
		k.key(x.Key)
		token.token(&x.Token)
		redeems.token(&dibs.Token{})
	}
	return &call{
		statement: s.standDowns,
		params:    [][]byte{k.encode(), token.encode(), redeems.encode()},
		reset: func() {
			for _, i := range part {
				delete(left, i)
			}
		},
		row: func(r *reading) error {
			i := r.int()
			if i < 1 || int(i) > n {
				return fmt.Errorf("pgstore: the server answered question %d of %d", i, n)
			}
			left[part[i-1]] = true
			return r.err
		},
	}
}

// parts makes the calls of n elements, as many of them in one as may be, and says
// why the others failed alone.
func (s *Store) parts(ctx context.Context, n int, size func(int) int, errs []error,
	valid func(int) error, key func(int) dibs.Key, prepare func([]int) *call) error {
	fail := func(i int, err error) { errs[i] = err }
	part := make([]int, 0, min(n, most))
	bytes := 0
	for i := range n {
		if errs[i] = valid(i); errs[i] != nil {
			continue
		}
		if len(part) == most || len(part) > 0 && bytes+size(i) > mostBytes {
			if err := s.runApart(ctx, s.back, part, key, fail, prepare); err != nil {
				return err
			}
			part, bytes = part[:0], 0
		}
		part = append(part, i)
		bytes += size(i)
	}
	if len(part) == 0 {
		return nil
	}
	return s.runApart(ctx, s.back, part, key, fail, prepare)
}

// those is the call of a function that returns the numbers of those elements that
// it did what was asked for. All others are lost.
func those(st *statement, part []int, errs []error, arrays ...array) *call {
	params := make([][]byte, len(arrays))
	for i := range arrays {
		params[i] = arrays[i].encode()
	}
	return &call{
		statement: st,
		params:    params,
		reset: func() {
			for _, i := range part {
				errs[i] = dibs.ErrLost
			}
		},
		row: func(r *reading) error {
			i := r.int()
			if i < 1 || int(i) > len(part) {
				return fmt.Errorf("pgstore: the server answered question %d of %d", i, len(part))
			}
			errs[part[i-1]] = nil
			return r.err
		},
	}
}

// fits returns an error when a record of n bytes is too large.
func (s *Store) fits(n int) error {
	if n > s.options.MaxRecord {
		return fmt.Errorf("%w: the record has %d bytes; it may have at most %d", dibs.ErrTooLarge, n, s.options.MaxRecord)
	}
	return nil
}
