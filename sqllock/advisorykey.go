package sqllock

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// AdvisoryKey names an advisory lock of a PostgreSQL database. Two databases of one
// server never meet. Within one there are two spaces of locks: numbers of 64 bits
// (IntKey, NameKey), and pairs of 32 bits (PairKey, RubyKey); a lock of one space has
// nothing to do with any of the other, whatever the bits.
//
// AdvisoryKeys are comparable. The zero value is IntKey(0).
type AdvisoryKey struct {
	bits int64 // of a pair: the first number in the upper half
	pair bool
}

// IntKey is the lock that SQL names pg_advisory_lock(n).
func IntKey(n int64) AdvisoryKey { return AdvisoryKey{bits: n} }

// PairKey is the lock that SQL names pg_advisory_lock(a, b).
func PairKey(a, b int32) AdvisoryKey {
	return AdvisoryKey{bits: int64(a)<<32 | int64(uint32(b)), pair: true}
}

// NameKey is the lock of a name, of any bytes. The namespace keeps two applications in
// one database apart: the schema that each works in is a good one.
//
// It is IntKey of the first 8 bytes, big-endian, of the SHA-256 of "dibs advisory 1",
// the namespace's length as 8 bytes big-endian, the namespace and the name. Names are
// not folded, trimmed or cut. 64 bits is all that PostgreSQL offers: of n names any
// two have the same lock with a probability of n²/2⁶⁵ (a million names: 3 in 10⁸).
// Then they exclude one another for no reason, which costs time; no name is ever
// without its lock.
func NameKey(namespace, name string) AdvisoryKey {
	h := sha256.New()
	h.Write([]byte("dibs advisory 1"))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(namespace))))
	h.Write([]byte(namespace))
	h.Write([]byte(name))
	var sum [sha256.Size]byte
	return IntKey(int64(binary.BigEndian.Uint64(h.Sum(sum[:0]))))
}

// RubyKey is the lock that the Ruby gem with_advisory_lock takes for the name, so
// that a Go service and a Rails application exclude one another. The prefix is what
// the environment variable WITH_ADVISORY_LOCK_PREFIX has there, mostly "".
//
// It is PairKey of the lower 31 bits of the name's CRC-32 (zlib's) and of the number
// that the prefix begins with, 0 if it begins with none. 31 bits are few: of 10,000
// names two have the same lock with a probability of 2 %. Where Ruby gives a number n
// as the name, the lock is PairKey(int32(n&0x7fffffff), 0).
func RubyKey(prefix, name string) AdvisoryKey {
	return PairKey(int32(crc32.ChecksumIEEE([]byte(name))&0x7fffffff), rubyInt(prefix))
}

// rubyInt is what Ruby's to_i makes of a string, and the gem of that: its lower 31
// bits.
func rubyInt(s string) int32 {
	s = strings.TrimLeft(s, " \t\n\v\f\r")
	digits := strings.TrimPrefix(s, "-")
	negative := digits != s
	if !negative {
		digits = strings.TrimPrefix(s, "+")
	}
	var n uint32 // wraps, and keeps the lower bits
	for i := range len(digits) {
		switch c := digits[i]; {
		case '0' <= c && c <= '9':
			n = 10*n + uint32(c-'0')
			continue
		case c == '_' && i > 0 && digits[i-1] != '_':
			continue // 1_000 is a thousand
		}
		break
	}
	if negative {
		n = -n
	}
	return int32(n & 0x7fffffff)
}

// String returns the key as SQL has it: "7", or "7, -1" for a pair. It tells nothing
// about the name that a key was made of, and may be logged.
func (k AdvisoryKey) String() string {
	if k.pair {
		return fmt.Sprintf("%d, %d", k.high(), k.low())
	}
	return strconv.FormatInt(k.bits, 10)
}

func (k AdvisoryKey) high() int32 { return int32(k.bits >> 32) }
func (k AdvisoryKey) low() int32  { return int32(k.bits) }

// args returns the key as parameters of SQL, and the text that has them, the first
// of which is $1.
func (k AdvisoryKey) args() (text string, args []any) {
	if k.pair {
		return "$1::int, $2::int", []any{int64(k.high()), int64(k.low())}
	}
	return "$1::bigint", []any{k.bits}
}

// inLocks returns the key as pg_locks has it.
func (k AdvisoryKey) inLocks() (class, object int64, sub int) {
	sub = 1
	if k.pair {
		sub = 2
	}
	return int64(uint32(k.high())), int64(uint32(k.low())), sub
}
