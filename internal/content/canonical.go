package content

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"hash"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds how deep a document with a canonical form may be nested, because each level of
// objects takes memory.
const maxDepth = 100

// A canonical reads a document for a digest that is the same for two documents only if they mean
// the same: white space, the order of members and the escaping of strings do not count. Numbers are
// compared by value, exactly. It keeps two digests for each member of the
// objects that it is in, and no part of the document.
type canonical struct {
	*Document
	content *Reader
	levels  [maxDepth]struct {
		hash    hash.Hash // of a member's value
		members []member  // of the object so far
	}
	text []byte // to be hashed
}

// A member of an object is sorted by the digest of its name.
type member struct{ name, value [sha256.Size]byte }

// A chosen is a part of a document that leads to parts that are chosen, or is one itself.
type chosen struct {
	parts  map[string]*chosen
	is     bool
	found  bool
	digest [sha256.Size]byte
}

// add adds a part, and returns it.
func (c *chosen) add(path []string) *chosen {
	for _, name := range path {
		if c.parts == nil {
			c.parts = make(map[string]*chosen)
		}
		if c.parts[name] == nil {
			c.parts[name] = new(chosen)
		}
		c = c.parts[name]
	}
	c.is = true
	return c
}

// at returns a part of the part; nil if nothing in it is chosen.
func (c *chosen) at(name string) *chosen {
	if c == nil {
		return nil
	}
	return c.parts[name]
}

// CanonicalJSON returns a digest of a document that is the same for two documents only if they mean the
// same. It returns ErrAmbiguous for a document that readers could understand differently, and another
// error for what is not JSON.
func CanonicalJSON(in *Reader) ([]byte, error) { return canonicalJSON(in, nil) }

// canonicalJSON returns the digest of a document, and sets those of the parts that are chosen. It
// returns an error for what is not JSON, and for what readers disagree about: a member that is
// there twice, text that is not Unicode.
func canonicalJSON(in *Reader, parts *chosen) ([]byte, error) {
	c := &canonical{Document: NewDocument(in), content: in}
	h := sha256.New()
	if err := c.value(h, 0, parts); err != nil {
		return nil, err
	}
	return h.Sum(nil), c.End()
}

// value hashes the next value.
func (c *canonical) value(h hash.Hash, depth int, part *chosen) error {
	token, err := c.Token()
	if err != nil {
		return err
	}
	if part == nil || !part.is {
		return c.rest(h, token, depth, part)
	}
	own := sha256.New()
	if err := c.rest(own, token, depth, part); err != nil {
		return err
	}
	part.found = true
	own.Sum(part.digest[:0])
	h.Write(part.digest[:])
	return nil
}

// rest hashes the value whose first token was read.
func (c *canonical) rest(h hash.Hash, token json.Token, depth int, part *chosen) error {
	switch t := token.(type) {
	case nil:
		c.write(h, 'z', "")
		return nil
	case bool:
		c.write(h, 'b', strconv.FormatBool(t))
		return nil
	case json.Number:
		c.write(h, 'n', Number(string(t)))
		return nil
	case string:
		c.write(h, 's', t)
		return checkText(t)
	}
	switch {
	case depth == maxDepth:
		return ErrAmbiguous
	case token == json.Delim('{'):
		return c.object(h, depth, part)
	}
	c.write(h, '[', "")
	err := c.Each(func(i int) error {
		var element *chosen
		if part != nil && part.parts != nil {
			element = part.at(strconv.Itoa(i))
		}
		return c.value(h, depth+1, element)
	})
	c.write(h, ']', "")
	return err
}

// Number returns one spelling of a JSON number: its digits without zeros at either end, and
// the power of ten of the last digit. An exponent of more than 15 characters stays as it is.
func Number(s string) string {
	digits, negative := strings.CutPrefix(s, "-")
	power := 0
	if i := strings.IndexAny(digits, "eE"); i >= 0 {
		if len(digits)-i > 16 {
			return s
		}
		power, _ = strconv.Atoi(digits[i+1:]) // JSON allows nothing else
		digits = digits[:i]
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(digits, "0")
	if short == "" {
		return "0"
	}
	power += len(digits) - len(short) - len(fraction)
	text := short + "e" + strconv.Itoa(power)
	if negative {
		text = "-" + text
	}
	return text
}

// object hashes the members of an object, in the order of the digests of their names.
func (c *canonical) object(h hash.Hash, depth int, part *chosen) error {
	level := &c.levels[depth]
	if level.hash == nil {
		level.hash = sha256.New()
	}
	level.members = level.members[:0]
	err := c.EachMember(func(name string) error {
		if err := checkText(name); err != nil {
			return err
		}
		m := member{name: sha256.Sum256([]byte(name))}
		level.hash.Reset()
		if err := c.value(level.hash, depth+1, part.at(name)); err != nil {
			return err
		}
		level.hash.Sum(m.value[:0])
		if n := len(level.members); n == cap(level.members) {
			if err := c.content.take(int64(n+8) * 3 * int64(len(m.name)+len(m.value))); err != nil {
				c.content.err = err
				return err
			}
			level.members = slices.Grow(level.members, n+8)
		}
		level.members = append(level.members, m)
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(level.members, func(a, b member) int { return bytes.Compare(a.name[:], b.name[:]) })
	c.write(h, '{', strconv.Itoa(len(level.members)))
	for i, m := range level.members {
		if i > 0 && m.name == level.members[i-1].name {
			return ErrAmbiguous
		}
		c.text = append(append(c.text[:0], m.name[:]...), m.value[:]...)
		h.Write(c.text)
	}
	return nil
}

// write hashes a token, so that what follows cannot be taken for a part of it.
func (c *canonical) write(h hash.Hash, kind byte, text string) {
	c.text = binary.AppendUvarint(append(c.text[:0], kind), uint64(len(text)))
	c.text = append(c.text, text...)
	h.Write(c.text)
}

// checkText refuses text that a Decoder has changed: perhaps half of a surrogate pair, or bytes that
// are not Unicode.
func checkText(s string) error {
	if strings.ContainsRune(s, utf8.RuneError) {
		return ErrAmbiguous
	}
	return nil
}
