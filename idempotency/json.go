package idempotency

import (
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
)

// errNotPlain: the document has no canonical form, because two readers could understand it
// differently.
var errNotPlain = errors.New("the JSON document is ambiguous")

// maxVisited is how many members and elements of a document are looked at one by one, because each
// takes a microsecond. Those of a value that is skipped do not count.
const maxVisited = 20000

// A document is a JSON document that is read part by part. Numbers stay as they are spelled.
type document struct {
	*json.Decoder
	visited int
}

// newDocument returns the document that a content is.
func newDocument(c *contents) *document {
	d := json.NewDecoder(c)
	d.UseNumber()
	c.index = d.InputOffset
	return &document{Decoder: d}
}

// skip reads the next value.
func (d *document) skip() error { return d.Decode(new(skipped)) }

// A skipped is a value that is not kept.
type skipped struct{}

// UnmarshalJSON accepts every value.
func (*skipped) UnmarshalJSON([]byte) error { return nil }

// visit returns errTooLarge if too much has been looked at.
func (d *document) visit() error {
	if d.visited++; d.visited > maxVisited {
		return errTooLarge
	}
	return nil
}

// each calls element for each element of an array whose "[" was read, up to its end. element reads
// one value.
func (d *document) each(element func(i int) error) error {
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

// eachMember calls member with the name of each member of an object whose "{" was read, up to its
// end. member reads one value.
func (d *document) eachMember(member func(name string) error) error {
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

// end returns an error if something follows the document.
func (d *document) end() error {
	switch _, err := d.Token(); {
	case err == io.EOF:
		return nil
	case err != nil:
		return err
	}
	return errNotPlain
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

// errNoPart: the document does not have the part.
var errNoPart = errors.New("the JSON document does not have this part")

// part reads the part of the next value that the path leads to, by value, and skips the rest.
// value gets the first token of the part. part returns errNoPart if there is none, and errTwoParts
// if there are several.
func (d *document) part(path []string, value func(first json.Token) error) error {
	first, err := d.Token()
	if err != nil {
		return err
	}
	return d.partOf(first, path, value)
}

// partOf is part of a value whose first token was read.
func (d *document) partOf(first json.Token, path []string, value func(first json.Token) error) error {
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
		err = d.eachMember(next)
	case json.Delim('['):
		err = d.each(func(i int) error { return next(strconv.Itoa(i)) })
	}
	if err == nil && !found {
		err = errNoPart
	}
	return err
}
