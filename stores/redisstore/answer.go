package redisstore

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/store"
)

// reply reads a script's answer to one element; see lua/state.lua. It keeps the first
// error.
type reply struct {
	what   byte
	rest   []byte
	err    error
	number [8]byte // the rest of an answer that is a number
}

func (r *reply) read(m *rueidis.RedisMessage) {
	if m.IsInt64() {
		n, _ := m.AsInt64()
		binary.BigEndian.PutUint64(r.number[:], uint64(n))
		r.what, r.rest, r.err = 1, r.number[:], nil
		return
	}
	b, err := m.AsBytes()
	if err != nil || len(b) == 0 {
		*r = reply{err: errors.Join(errors.New("redisstore: the script's answer cannot be read"), err)}
		return
	}
	r.what, r.rest, r.err = b[0], b[1:], nil
}

func (r *reply) take(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.rest) {
		if r.err == nil {
			r.err = errors.New("redisstore: the script's answer is too short")
		}
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reply) int() int64 {
	b := r.take(8)
	if b == nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b))
}

func (r *reply) bytes() []byte { return r.take(int(r.int())) }

func (r *reply) duration() time.Duration { return time.Duration(r.int()) * time.Microsecond }

func (r *reply) token() (t store.Token) {
	copy(t[:], r.bytes())
	return t
}
