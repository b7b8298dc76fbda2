package idempotency

import (
	"bytes"
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
)

// keySize is the length of an AES-256 key, in bytes.
const keySize = 32

// maxKeyID is the longest ID of a key, in bytes. A key in base64 or hexadecimal is longer, so it is
// never taken for an ID and never printed.
const maxKeyID = 32

// Plaintext is the ID of no encryption. A ring that has it reads answers that are not encrypted. If
// it is the current key, the ring encrypts nothing. This is how encryption is turned on and off
// while answers are stored.
const Plaintext = "plaintext"

// encryptedPrefix begins an encrypted record. No other record begins with it, because "G" stands for
// a kind of block that RFC 1951 reserves.
const encryptedPrefix = "GCM/"

// KeyRing has the encryption keys of stored answers (AES-256-GCM). Its current key encrypts, and all
// of its keys decrypt. It refuses answers that are not encrypted, unless it has Plaintext. It is safe
// for concurrent use. Make one with NewKeyRing or ParseKeyRing.
//
// A nil KeyRing encrypts nothing and decrypts nothing. Do not encrypt more than 2^32 answers with
// one key, because the nonces are random.
type KeyRing struct {
	current   string
	ciphers   map[string]cipher.AEAD // by the ID of their key
	plaintext bool                   // it has Plaintext
}

// NewKeyRing returns a ring of the keys, by ID. A key has 32 random bytes. An ID has 1 to 32
// letters, digits, dots, hyphens and underscores, and is stored with each answer. The key of Plaintext
// is empty. current is the ID of the key that encrypts, or Plaintext. The error names the ID of a
// wrong key.
func NewKeyRing(current string, keys map[string][]byte) (*KeyRing, error) {
	r := &KeyRing{current: current, ciphers: make(map[string]cipher.AEAD, len(keys))}
	r.plaintext = current == Plaintext
	for id, key := range keys {
		switch {
		case id == Plaintext && len(key) == 0:
			r.plaintext = true
			continue
		case !isKeyID(id):
			return nil, errors.New("idempotency: the key ring: " + badKeyID)
		case id == Plaintext:
			return nil, fmt.Errorf("idempotency: the key ring: %q cannot have a key", id)
		case len(key) != keySize:
			return nil, fmt.Errorf("idempotency: the key ring: the key %q has %d bytes; it must have %d", id, len(key), keySize)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("idempotency: the key ring: the key %q: %w", id, err)
		}
		if r.ciphers[id], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, fmt.Errorf("idempotency: the key ring: the key %q: %w", id, err)
		}
	}
	switch {
	case len(r.ciphers) == 0:
		return nil, errors.New("idempotency: the key ring has no key; write ID:KEY, with 32 bytes in base64 as KEY")
	case current != Plaintext && r.ciphers[current] == nil:
		return nil, errors.New("idempotency: the key ring does not have its current key")
	}
	return r, nil
}

// badKeyID does not quote the ID, because a key may be written in its place.
const badKeyID = "an ID must have 1 to 32 letters, digits, dots, hyphens and underscores"

// ParseKeyRing reads a ring from text: for each key ID:KEY, with white space between two keys. KEY
// is 32 bytes in base64 (RFC 4648, section 4). The word plaintext stands for Plaintext. The first key
// is the current one. The error names the ID of a wrong key, or its position if the ID is wrong.
func ParseKeyRing(text string) (*KeyRing, error) {
	current, keys := "", make(map[string][]byte)
	text = strings.TrimPrefix(text, "\ufeff") // some editors write a byte order mark
	for i, element := range strings.Fields(text) {
		id, encoded, ok := strings.Cut(element, ":")
		switch _, twice := keys[id]; {
		case twice:
			return nil, fmt.Errorf("idempotency: the key ring has two keys with the ID %q", id)
		case element == Plaintext:
		case !ok:
			return nil, fmt.Errorf("idempotency: the key ring: key %d is not of the form ID:KEY", i+1)
		case !isKeyID(id):
			return nil, fmt.Errorf("idempotency: the key ring: key %d: %s", i+1, badKeyID)
		}
		key, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if err != nil {
			return nil, fmt.Errorf("idempotency: the key ring: the key %q is not base64", id)
		}
		current = cmp.Or(current, id)
		keys[id] = key
	}
	return NewKeyRing(current, keys)
}

// isKeyID reports whether s can be the ID of a key.
func isKeyID(s string) bool {
	return s != "" && len(s) <= maxKeyID && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && !strings.ContainsRune(".-_", c)
	})
}

// Encrypt encrypts a record that EncodeAnswer returned, to be stored under the dibs.Key for the
// retention. Only a request with the fingerprint gets the answer; with a zero one, any request under
// the key. A nil ring and a ring with Plaintext return the record as it is.
func (r *KeyRing) Encrypt(key dibs.Key, fingerprint dibs.Fingerprint, retention time.Duration, record []byte) []byte {
	if r == nil || r.current == Plaintext {
		return record
	}
	expires := time.Now().Add(retention + time.Second).Unix() // rounded up
	head := encryptedPrefix + r.current + "/" + strconv.FormatInt(expires, 10) + "\n"
	sealer := r.ciphers[r.current]
	encrypted := make([]byte, 0, len(head)+len(record)+sealer.Overhead())
	return sealer.Seal(append(encrypted, head...), nil, record, associated(head, key, fingerprint))
}

// Decrypt returns the record that Encrypt got. A nil ring and a ring with Plaintext return a record
// that is not encrypted as it is. Decrypt returns ErrRecord if the ring does not have the record's
// encryption key or Plaintext, if the record was changed, if it was encrypted for another dibs.Key or
// fingerprint, or if its retention has ended by this host's clock.
func (r *KeyRing) Decrypt(key dibs.Key, fingerprint dibs.Fingerprint, record []byte) ([]byte, error) {
	id, expires, sealed, ok := cutHead(record)
	switch {
	case !ok && r != nil && !r.plaintext:
		return nil, fmt.Errorf("%w: it is not encrypted, and the key ring does not have the word plaintext", ErrRecord)
	case !ok:
		return record, nil
	}
	var opener cipher.AEAD
	if r != nil {
		opener = r.ciphers[id]
	}
	if opener == nil {
		return nil, fmt.Errorf("%w: it is encrypted with the key %q, which the key ring does not have", ErrRecord, id)
	}
	head := string(record[:len(record)-len(sealed)])
	message, err := opener.Open(nil, nil, sealed, associated(head, key, fingerprint))
	if err != nil { // an answer of an operator, who does not know the request, has no fingerprint
		message, err = opener.Open(nil, nil, sealed, associated(head, key, dibs.Fingerprint{}))
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: the key %q does not decrypt it: it was changed or moved, or another key had this ID", ErrRecord, id)
	case time.Now().After(expires):
		return nil, fmt.Errorf("%w: its retention ended at %s: it was put back, or the servers' clocks differ", ErrRecord, expires.UTC().Format(time.RFC3339))
	}
	return message, nil
}

// EncryptedWith returns the ID of a record's encryption key. It reports false if the
// record is not encrypted.
func EncryptedWith(record []byte) (id string, ok bool) {
	id, _, _, ok = cutHead(record)
	return id, ok
}

// maxHeadLine is longer than what follows encryptedPrefix in the longest first line.
const maxHeadLine = maxKeyID + 24

// cutHead returns what the first line of an encrypted record says, and what follows it. It reports
// false if the record is not encrypted.
func cutHead(record []byte) (id string, expires time.Time, sealed []byte, ok bool) {
	rest, ok := bytes.CutPrefix(record, []byte(encryptedPrefix))
	if !ok {
		return "", time.Time{}, nil, false
	}
	line, _, ok := strings.Cut(string(rest[:min(len(rest), maxHeadLine)]), "\n")
	if !ok {
		return "", time.Time{}, nil, false
	}
	id, end, _ := strings.Cut(line, "/")
	seconds, err := strconv.ParseInt(end, 10, 64)
	if err != nil || !isKeyID(id) {
		return "", time.Time{}, nil, false
	}
	return id, time.Unix(seconds, 0), rest[len(line)+1:], true
}

// associated returns what is authenticated with a record, so that no other key, request or time
// accepts the record.
func associated(head string, key dibs.Key, f dibs.Fingerprint) []byte {
	text := []byte(head + strconv.Itoa(len(key.Namespace)) + ":" + key.Namespace + key.Name)
	return append(text, f[:]...)
}
