package pgstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs"
)

const claimSQL = `SELECT i, state, fence, attempt, remains, ahead, queued, idle, age, permits, data
FROM @claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`

// Claim implements dibs.Store, with one statement.
func (s *Store) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	all := make([]int, 0, len(claims))
	for i := range claims {
		answers[i] = dibs.Answer{Err: claims[i].Validate()}
		if answers[i].Err == nil {
			all = append(all, i)
		}
	}
	for len(all) > 0 {
		part := all[:min(len(all), most)]
		all = all[len(part):]
		if err := s.claim(ctx, part, claims, answers); err != nil {
			return err
		}
	}
	return nil
}

// claim makes one call of those claims.
func (s *Store) claim(ctx context.Context, part []int, claims []dibs.Claim, answers []dibs.Answer) error {
	process, tells := s.waiting.address()
	key := func(i int) dibs.Key { return claims[i].Key }
	fail := func(i int, err error) { answers[i] = dibs.Answer{Err: err} }
	err := s.runApart(ctx, s.front, part, key, fail, func(part []int) *call {
		return &call{
			statement: s.claims,
			params:    s.claimParams(part, claims, process, tells),
			row: func(r *reading) error {
				i := r.int()
				if i < 1 || int(i) > len(part) {
					return fmt.Errorf("pgstore: the server answered question %d of %d", i, len(part))
				}
				return s.readAnswer(&answers[part[i-1]], r)
			},
			want: len(part),
		}
	})
	if err == nil {
		s.waiting.heard(part, claims, answers, process)
	}
	return err
}

func (s *Store) claimParams(part []int, claims []dibs.Claim, process int64, tells bool) [][]byte {
	n := len(part)
	k := newArray(pgtype.ByteaOID, n, 32)
	mode := newArray(pgtype.Int2OID, n, 2)
	token := newArray(pgtype.ByteaOID, n, 16)
	redeems := newArray(pgtype.ByteaOID, n, 0)
	ttl := newArray(pgtype.Int8OID, n, 8)
	place := newArray(pgtype.Int8OID, n, 8)
	hold := newArray(pgtype.Int8OID, n, 8)
	permits := newArray(pgtype.Int4OID, n, 4)
	maxAge := newArray(pgtype.Int8OID, n, 8)
	once := newArray(pgtype.BoolOID, n, 1)
	fingerprint := newArray(pgtype.ByteaOID, n, 0)
	owner := newArray(pgtype.ByteaOID, n, 32)
	var last dibs.Owner // mostly that of all
	var ownerText []byte
	for _, i := range part {
		c := &claims[i]
		k.key(c.Key)
		mode.int16(int16(c.Mode))
		token.token(&c.Token)
		redeems.token(&c.Redeems)
		ttl.duration(c.TTL)
		place.duration(c.Place)
		hold.duration(c.Hold)
		permits.int32(int32(c.Permits))
		maxAge.duration(c.MaxAge)
		once.bool(c.AtMostOnce)
		fingerprint.fingerprint(&c.Fingerprint)
		if ownerText == nil || c.Owner != last {
			last, ownerText = c.Owner, []byte(c.Owner.String())
		}
		owner.bytes(ownerText)
	}
	var listens []byte // NULL
	if process != 0 {
		listens = binary.BigEndian.AppendUint64(nil, uint64(process))
	}
	return [][]byte{
		k.encode(), mode.encode(), token.encode(), redeems.encode(), ttl.encode(), place.encode(), hold.encode(),
		permits.encode(), maxAge.encode(), once.encode(), fingerprint.encode(), owner.encode(),
		listens, binaryBool(tells), binary.BigEndian.AppendUint32(nil, uint32(s.options.MaxWaiters)),
	}
}

// The types of claimParams.
var claimTypes = []uint32{
	pgtype.ByteaArrayOID, pgtype.Int2ArrayOID, pgtype.ByteaArrayOID, pgtype.ByteaArrayOID, pgtype.Int8ArrayOID,
	pgtype.Int8ArrayOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID, pgtype.Int8ArrayOID, pgtype.BoolArrayOID, pgtype.ByteaArrayOID,
	pgtype.ByteaArrayOID, pgtype.Int8OID, pgtype.BoolOID, pgtype.Int4OID,
}

// The states as sql/claim.sql answers them. They are the functions' own numbers,
// which outlive a change of the contract's.
const (
	full = iota
	granted
	held
	free
	done
	mismatch
	permitsDiffer
	unknown
)

// readAnswer reads one claim's answer, behind its number.
func (s *Store) readAnswer(a *dibs.Answer, r *reading) error {
	state, fence, attempt, remains := r.int(), uint64(r.int()), int(r.int()), r.duration()
	ahead, queued, idle := int(r.int()), r.bool(), r.bool()
	age, permits := r.duration(), int(r.int())
	*a = dibs.Answer{}
	switch state {
	case full:
		a.Err = fmt.Errorf("%w: %d wait for the key already", dibs.ErrFull, s.options.MaxWaiters)
	case granted:
		a.State, a.Fence, a.Attempt, a.Progress = dibs.Granted, fence, attempt, r.bytes()
	case held:
		a.State, a.Fence, a.Left, a.Ahead, a.Queued = dibs.Held, fence, remains, ahead, queued
		a.Idle = idle
	case free:
		a.State = dibs.Free
	case done:
		a.State, a.Record = dibs.Done, dibs.Record{Age: max(age, 0), Left: remains, Data: r.bytes()}
	case mismatch:
		a.State = dibs.Mismatch
	case permitsDiffer:
		a.State, a.Permits = dibs.PermitsDiffer, permits
	case unknown:
		a.State, a.ID = dibs.Unknown, r.token().ID()
	default:
		return fmt.Errorf("pgstore: the server answered with state %d", state)
	}
	return r.err
}

// waitsFor returns the token by which a claim that was answered so waits: its own,
// or that of the place that it redeems; false when it does not wait to be told.
func waitsFor(c *dibs.Claim, a *dibs.Answer) (dibs.Token, bool) {
	if a.State != dibs.Held || !a.Queued || c.Mode > dibs.Queue {
		return dibs.Token{}, false
	}
	if !c.Redeems.IsZero() {
		return c.Redeems, true
	}
	return c.Token, true
}

// stands returns for how long a claim's place is known to stand.
func stands(c *dibs.Claim) time.Duration {
	if !c.Redeems.IsZero() || c.Place == 0 {
		return redeemerAsks
	}
	return c.Place
}

// redeemerAsks is for how long a token that does not say so is taken to wait:
// longer than until it asks again.
const redeemerAsks = 5 * time.Second
