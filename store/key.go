package store

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Bounds of all stores. They are part of the contract, because a key that one store accepts
// must be accepted by all.
const (
	// MaxKey is the longest name of a key, in bytes.
	MaxKey = 512
	// MaxNamespace is the longest namespace, in bytes.
	MaxNamespace = 64
	// MaxOwner is the longest text of an Owner, in bytes.
	MaxOwner = 255
	// MaxPermits is the largest number of holders that a key can have at once.
	MaxPermits = 1 << 16
	// MaxProgress is the largest progress that a lease can carry, in bytes.
	MaxProgress = 1 << 20
)

// Key names one thing to call dibs on. Two keys are the same if both parts are equal byte
// for byte: no store folds case, trims or truncates.
type Key struct {
	// Namespace keeps the keys of two applications on one store apart: 0 to
	// MaxNamespace bytes of printable ASCII without spaces.
	Namespace string
	// Name is 1 to MaxKey bytes of anything.
	Name string
}

// Validate returns nil for a key that stores accept, and otherwise an error that says which
// part is wrong and how.
func (k Key) Validate() error {
	switch n := len(k.Name); {
	case n == 0:
		return errors.New("dibs: the key is empty; it must have 1 to 512 bytes")
	case n > MaxKey:
		return fmt.Errorf("dibs: the key has %d bytes; it must have 1 to %d", n, MaxKey)
	}
	return ValidateNamespace(k.Namespace)
}

// ValidateNamespace returns nil for a namespace that stores accept, and otherwise an error that says
// how it is wrong.
func ValidateNamespace(ns string) error {
	if len(ns) > MaxNamespace {
		return fmt.Errorf("dibs: the namespace has %d bytes; it may have at most %d", len(ns), MaxNamespace)
	}
	for i := range len(ns) {
		if c := ns[i]; c <= ' ' || c > '~' {
			return fmt.Errorf("dibs: the namespace %q has a byte that is not printable ASCII at offset %d", ns, i)
		}
	}
	return nil
}

// Digest returns a short digest of the key (12 hexadecimal digits): the form in which a key
// may be logged. It is not an identifier, because digests can collide.
func (k Key) Digest() string {
	h := sha256.New()
	h.Write([]byte(k.Namespace))
	h.Write([]byte{0})
	h.Write([]byte(k.Name))
	var sum [sha256.Size]byte
	return hex.EncodeToString(h.Sum(sum[:0])[:6])
}

// LogValue makes log/slog write the digest, because a key may be a secret.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.Digest()) }

// Token names one claim and its lease: 128 random bits, made by the caller and never used
// for a second claim. It must not be logged, because it is enough to settle the lease. ID
// is its public name.
type Token [16]byte

// NewToken returns a new random token.
func NewToken() Token {
	// The runtime's generator is ChaCha8, seeded by the operating system. It needs no lock
	// and no system call.
	var t Token
	binary.LittleEndian.PutUint64(t[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(t[8:], rand.Uint64())
	return t
}

// IsZero reports whether the token is the zero Token, which names no claim.
func (t Token) IsZero() bool { return t == Token{} }

// idEncoding spells an ID: lower case, digits 2 to 7, no padding.
var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// ID returns the public name of the lease: 16 characters, a to z and 2 to 7, from which
// the token cannot be found. Operators name a lease by it.
func (t Token) ID() string {
	sum := sha256.Sum256(append([]byte("dibs claim id\x00"), t[:]...))
	return idEncoding.EncodeToString(sum[:10])
}

// String returns the ID, because a token that is printed by mistake must stay secret.
func (t Token) String() string { return t.ID() }

// Fingerprint is a SHA-256 digest of what was asked under a key. With it a store notices
// that a key is reused for something else. The zero Fingerprint differs from no other.
type Fingerprint [sha256.Size]byte

// IsZero reports whether there is no fingerprint.
func (f Fingerprint) IsZero() bool { return f == Fingerprint{} }

// Differs reports whether the fingerprints differ and neither is zero.
func (f Fingerprint) Differs(g Fingerprint) bool {
	return f != g && !f.IsZero() && !g.IsZero()
}

// Owner describes a holder for people. Stores keep it and never act on it.
type Owner struct {
	Host  string // host name
	PID   int    // process id on that host
	Label string // purpose, chosen by the caller
}

// String returns "HOST PID LABEL", cut to MaxOwner bytes: the form in which a store keeps
// an Owner. Spaces in Host become underscores.
func (o Owner) String() string {
	s := strings.ReplaceAll(o.Host, " ", "_") + " " + strconv.Itoa(o.PID) + " " + o.Label
	return s[:min(len(s), MaxOwner)]
}

// ParseOwner reads what Owner.String wrote. Text of another form becomes the Label.
func ParseOwner(s string) Owner {
	host, rest, _ := strings.Cut(s, " ")
	pid, label, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(pid)
	if err != nil {
		return Owner{Label: s}
	}
	return Owner{Host: host, PID: n, Label: label}
}
