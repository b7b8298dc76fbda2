package sqllock

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// AdvisoryKey names an advisory lock of a PostgreSQL database. Locks of two databases
// never meet. A database has two spaces of locks: 64-bit numbers (IntKey, NameKey) and
// pairs of 32-bit numbers (PairKey, RubyKey). Locks of different spaces never meet.
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

// NameKey is the lock of a name, which may be any bytes. The namespace separates
// applications in one database; the application's schema is a good choice.
//
// It is IntKey of the first 8 bytes, big-endian, of the SHA-256 of "dibs advisory 1", the
// namespace's length as 8 bytes big-endian, the namespace and the name. Names are not
// folded, trimmed or cut. PostgreSQL offers 64 bits: among n names, two share a lock with
// probability n²/2⁶⁵ (a million names: 3 in 10⁸). Two such names exclude each other,
// which costs time, but never safety.
func NameKey(namespace, name string) AdvisoryKey {
	h := sha256.New()
	h.Write([]byte("dibs advisory 1"))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(namespace))))
	h.Write([]byte(namespace))
	h.Write([]byte(name))
	var sum [sha256.Size]byte
	return IntKey(int64(binary.BigEndian.Uint64(h.Sum(sum[:0]))))
}

// RubyKey is the lock that the Ruby gem with_advisory_lock takes for the name, so that a
// Go service and a Rails application exclude each other. The prefix is the value of the
// environment variable WITH_ADVISORY_LOCK_PREFIX there, usually "".
//
// It is PairKey of the lower 31 bits of the name's CRC-32 (zlib's) and of the number at
// the beginning of the prefix, or 0. 31 bits are few: among 10,000 names, two share a
// lock with probability 2 %. If the Ruby name is a number n, use
// PairKey(int32(n&0x7fffffff), 0).
func RubyKey(prefix, name string) AdvisoryKey {
	return PairKey(int32(crc32.ChecksumIEEE([]byte(name))&0x7fffffff), rubyInt(prefix))
}

// rubyInt is Ruby's to_i, cut to 31 bits as the gem does.
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

// String returns the key as SQL writes it: "7", or "7, -1" for a pair. It does not
// contain the name, so it may be logged.
func (k AdvisoryKey) String() string {
	if k.pair {
		return fmt.Sprintf("%d, %d", k.high(), k.low())
	}
	return strconv.FormatInt(k.bits, 10)
}

func (k AdvisoryKey) high() int32 { return int32(k.bits >> 32) }
func (k AdvisoryKey) low() int32  { return int32(k.bits) }

// args returns the key as SQL parameters, from $1, and the text that refers to them.
func (k AdvisoryKey) args() (text string, args []any) {
	if k.pair {
		return "$1::int, $2::int", []any{int64(k.high()), int64(k.low())}
	}
	return "$1::bigint", []any{k.bits}
}

// inLocks returns the key as pg_locks shows it.
func (k AdvisoryKey) inLocks() (class, object int64, sub int) {
	sub = 1
	if k.pair {
		sub = 2
	}
	return int64(uint32(k.high())), int64(uint32(k.low())), sub
}
