package redisstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/dibs-go/dibs/store"
)

// This file reads the values that lua/state.lua describes. Times are the server's, in µs.

// memory is how long an abandoned lease is kept; see lua/state.lua.
var memory = store.AbandonedRetention.Microseconds()

// errForeign: a value is not one of the store's.
var errForeign = errors.New("WRONGTYPE the value is not one that this version of dibs has written")

// reader reads a value from its beginning. Beyond its end are zero bytes, and short is set.
type reader struct {
	rest  []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.rest) {
		r.short = true
		r.rest = nil
		return make([]byte, min(n, 64))
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte { return r.take(1)[0] }

func (r *reader) uint32() int { return int(binary.BigEndian.Uint32(r.take(4))) }

func (r *reader) int() int64 { return int64(binary.BigEndian.Uint64(r.take(8))) }

func (r *reader) token() store.Token { return store.Token(r.take(16)) }

// stored is a claim as it was sent.
type stored struct {
	once    bool
	token   store.Token
	mode    store.Mode
	permits int
	owner   store.Owner
}

// claim reads a claim up to its owner. What follows may be cut.
func (r *reader) claim() (c stored) {
	body := reader{rest: r.take(r.uint32())}
	body.take(1)
	c.once = body.byte() == 1
	body.take(8)
	c.token, c.mode, c.permits = body.token(), store.Mode(body.byte()), body.uint32()
	body.take(4)
	c.owner = store.ParseOwner(string(body.take(int(body.byte()))))
	r.short = r.short || body.short
	return c
}

// lease is a lease in the state of a key.
type lease struct {
	stored
	place, number, fence, since, ends int64
}

// keyState is the state of a key.
type keyState struct {
	free, queue int64
	leases      []lease
	abandoned   *lease
}

// readState reads the state of a key.
func readState(value []byte) (*keyState, error) {
	r := &reader{rest: value}
	if r.byte() != 1 {
		return nil, errForeign
	}
	k := &keyState{free: r.int(), queue: r.int()}
	abandoned := r.byte() == 1
	for len(r.rest) > 0 {
		l := lease{place: r.int()}
		r.take(8 + 1)
		l.number, l.fence, l.since, l.ends = r.int(), r.int(), r.int(), r.int()
		l.stored = r.claim()
		k.leases = append(k.leases, l)
	}
	if r.short || abandoned && len(k.leases) == 0 {
		return nil, errForeign
	}
	if last := len(k.leases) - 1; abandoned {
		k.abandoned, k.leases = &k.leases[last], k.leases[:last:last]
	}
	return k, nil
}

// advance ends what has expired, as in lua/key.lua.
func (k *keyState) advance(now int64) {
	if k.queue <= now {
		k.queue, k.free = 0, 0
	}
	slices.SortStableFunc(k.leases, func(a, b lease) int { return cmp.Compare(min(a.ends, now+1), min(b.ends, now+1)) })
	for len(k.leases) > 0 && k.leases[0].ends <= now {
		over := k.leases[0]
		k.leases = k.leases[1:]
		over.number, over.place = 1, 0
		if k.abandoned != nil {
			over.number += k.abandoned.number
		}
		k.abandoned = &over
	}
	if a := k.abandoned; a != nil && !a.once && a.ends+memory <= now {
		k.abandoned = nil
	}
}

// leased reports whether a lease was granted at that number and is live.
func (k *keyState) leased(number int64) bool {
	return slices.ContainsFunc(k.leases, func(l lease) bool { return l.place == number })
}

// place is a place in a queue.
type place struct {
	stored
	ends, number, grace, asked int64
	kept                       bool // only its number is kept
}

func (p *place) reserves() bool { return p.mode == store.Reserve }

// readPlace reads a place.
func readPlace(value []byte) (p place, err error) {
	r := &reader{rest: value}
	p.ends, p.number, p.grace, p.asked = r.int(), r.int(), r.int(), r.int()
	if channel, claim, ok := bytes.Cut(r.rest, []byte{0}); ok && !r.short {
		r.rest, p.kept = claim, string(channel) == "!"
		p.stored = r.claim()
		if !r.short {
			return p, nil
		}
	}
	return p, errForeign
}

// gives reports whether a reserved place gives way, because its Grace is over.
func (k *keyState) gives(p *place, now int64) bool {
	return p.reserves() && p.grace > 0 && k.free > 0 && max(k.free, p.asked)+p.grace <= now
}

// blocks returns how much longer a reserved place can block.
func (k *keyState) blocks(p *place, now int64) int64 {
	left := p.ends - now
	switch {
	case p.grace > 0 && k.free > 0:
		left = min(left, max(k.free, p.asked)+p.grace-now)
	case p.grace > 0:
		left = min(left, p.grace)
	}
	return left
}

// storedRecord is a record.
type storedRecord struct {
	written, ends int64
	token         store.Token
	data          []byte
}

// recordHead is the length of a record before its data.
const recordHead = 1 + 8 + 8 + 16 + 32

// readRecord reads a record, or its first bytes.
func readRecord(value []byte) (x storedRecord, err error) {
	r := &reader{rest: value}
	if r.byte() != 1 {
		return x, errForeign
	}
	x.written, x.ends, x.token = r.int(), r.int(), r.token()
	if r.take(32); r.short {
		return x, errForeign
	}
	x.data = r.rest
	return x, nil
}
