package content

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrAmbiguous: the document has no canonical form, because two readers could understand it
// differently.
var ErrAmbiguous = errors.New("the JSON document is ambiguous")

// maxVisited is how many members and elements of a document are looked at one by one, because each
// takes a microsecond. Those of a value that is skipped do not count.
const maxVisited = 20000

// A Document is a JSON document that is read part by part. Numbers stay as they are spelled.
type Document struct {
	*json.Decoder
	visited int
}

// NewDocument returns the document that a content is.
func NewDocument(c *Reader) *Document {
	d := json.NewDecoder(c)
	d.UseNumber()
	c.index = d.InputOffset
	return &Document{Decoder: d}
}

// skip reads the next value.
func (d *Document) skip() error { return d.Decode(new(skipped)) }

// A skipped is a value that is not kept.
type skipped struct{}

// UnmarshalJSON accepts every value.
func (*skipped) UnmarshalJSON([]byte) error { return nil }

// visit returns ErrTooLarge if too much has been looked at.
func (d *Document) visit() error {
	if d.visited++; d.visited > maxVisited {
		return ErrTooLarge
	}
	return nil
}

// Each calls element for each element of an array whose "[" was read, up to its end. element reads
// one value.
func (d *Document) Each(element func(i int) error) error {
	for i := 0; d.More(); i++ {
		if err := d.visit(); err != nil {
			return err
		}
		if err := element(i); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// EachMember calls member with the name of each member of an object whose "{" was read, up to its
// end. member reads one value.
func (d *Document) EachMember(member func(name string) error) error {
	for d.More() {
		if err := d.visit(); err != nil {
			return err
		}
		token, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string) // which a Decoder makes sure of
		if err := member(name); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// End returns an error if something follows the document.
func (d *Document) End() error {
	switch _, err := d.Token(); {
	case err == io.EOF:
		return nil
	case err != nil:
		return err
	}
	return ErrAmbiguous
}

// pathOf returns the names that lead to a part of a document: the name of a member of the object
// or, if field begins with "/", the parts of a JSON pointer (RFC 6901).
func pathOf(field string) []string {
	if !strings.HasPrefix(field, "/") {
		return []string{field}
	}
	path := strings.Split(field[1:], "/")
	for i, name := range path {
		path[i] = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
	}
	return path
}

// ErrNoObject: the value is not an object.
var ErrNoObject = errors.New("the JSON value is not an object")

// errNoPart: the document does not have the part.
var errNoPart = errors.New("the JSON document does not have this part")

// part reads the part of the next value that the path leads to, by value, and skips the rest.
// value gets the first token of the part. part returns errNoPart if there is none, and errTwoParts
// if there are several.
func (d *Document) part(path []string, value func(first json.Token) error) error {
	first, err := d.Token()
	if err != nil {
		return err
	}
	return d.partOf(first, path, value)
}

// partOf is part of a value whose first token was read.
func (d *Document) partOf(first json.Token, path []string, value func(first json.Token) error) error {
	if len(path) == 0 {
		return value(first)
	}
	found := false
	next := func(name string) error {
		switch {
		case name != path[0]:
			return d.skip()
		case found:
			return errTwoParts
		}
		found = true
		return d.part(path[1:], value)
	}
	err := errNoPart
	switch first {
	case json.Delim('{'):
		err = d.EachMember(next)
	case json.Delim('['):
		err = d.Each(func(i int) error { return next(strconv.Itoa(i)) })
	}
	if err == nil && !found {
		err = errNoPart
	}
	return err
}

// Members returns the members of an object whose first token was read. A name that is a known one but
// for its case is an error, because some readers take it for that.
func (d *Document) Members(first json.Token, known ...string) (map[string]json.RawMessage, error) {
	if first != json.Delim('{') {
		return nil, ErrNoObject
	}
	all := make(map[string]json.RawMessage)
	return all, d.EachMember(func(name string) error {
		var value json.RawMessage
		err := d.Decode(&value)
		spelled := func(k string) bool { return name != k && strings.EqualFold(name, k) }
		if err == nil && (all[name] != nil || slices.ContainsFunc(known, spelled) || !utf8.Valid(value)) {
			err = ErrAmbiguous
		}
		all[name] = value
		return cmp.Or(err, checkText(name)) // or two names would be one
	})
}

// MembersOf returns the members of a part of the content that is an object.
func (c *Reader) MembersOf(part json.RawMessage, known ...string) (map[string]json.RawMessage, error) {
	inside := c.Inside(part)
	d := NewDocument(inside)
	first, _ := d.Token()
	members, err := d.Members(first, known...)
	switch {
	case inside.err != nil:
		return nil, inside.err
	case err != nil:
		return nil, ErrNoObject
	}
	return members, nil
}
