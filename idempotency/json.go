package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds how deeply a JSON document may be nested that is brought into
// canonical form.
const maxDepth = 1000

// errNotPlain: the document has no canonical form here, because two readers
// could understand it differently.
var errNotPlain = errors.New("the JSON document is ambiguous")

// canonicalJSON appends a form of the document that differs for documents that
// mean different things, and only for those: members sorted, no white space,
// strings unescaped, numbers as they are spelled (1.0 may not be 1, and no
// number is rounded). It fails for what is not JSON, and for what readers
// disagree about: a member that is there twice, text that is not Unicode.
func canonicalJSON(dst, document []byte) ([]byte, error) {
	if !utf8.Valid(document) {
		return nil, errNotPlain
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	dst, err := appendValue(dst, d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errNotPlain
	}
	return dst, nil
}

// appendValue appends the canonical form of the next value.
func appendValue(dst []byte, d *json.Decoder, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, errNotPlain
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, t), nil
	case json.Number:
		return append(dst, t...), nil
	case string:
		return appendText(dst, t)
	case json.Delim:
		if t == '[' {
			return appendArray(dst, d, depth)
		}
		return appendObject(dst, d, depth)
	}
	return nil, errNotPlain
}

func appendText(dst []byte, s string) ([]byte, error) {
	if strings.ContainsRune(s, utf8.RuneError) {
		return nil, errNotPlain // perhaps half of a surrogate pair
	}
	return strconv.AppendQuote(dst, s), nil
}

func appendArray(dst []byte, d *json.Decoder, depth int) ([]byte, error) {
	dst = append(dst, '[')
	var err error
	for i := 0; d.More(); i++ {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendValue(dst, d, depth+1); err != nil {
			return nil, err
		}
	}
	_, err = d.Token() // the bracket
	return append(dst, ']'), err
}

func appendObject(dst []byte, d *json.Decoder, depth int) ([]byte, error) {
	type member struct {
		name  string
		value []byte
	}
	var members []member
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, ok := token.(string)
		if !ok {
			return nil, errNotPlain
		}
		value, err := appendValue(nil, d, depth+1)
		if err != nil {
			return nil, err
		}
		members = append(members, member{name, value})
	}
	if _, err := d.Token(); err != nil { // the brace
		return nil, err
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	dst = append(dst, '{')
	for i, m := range members {
		if i > 0 {
			if m.name == members[i-1].name {
				return nil, errNotPlain
			}
			dst = append(dst, ',')
		}
		var err error
		if dst, err = appendText(dst, m.name); err != nil {
			return nil, err
		}
		dst = append(dst, ':')
		dst = append(dst, m.value...)
	}
	return append(dst, '}'), nil
}

// pointAt returns the part of a decoded document that field names: a member of
// the object or, beginning with "/", a JSON pointer (RFC 6901).
func pointAt(document any, field string) (any, bool) {
	path := []string{field}
	if strings.HasPrefix(field, "/") {
		path = strings.Split(field[1:], "/")
		for i, name := range path {
			path[i] = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
		}
	}
	for _, name := range path {
		switch v := document.(type) {
		case map[string]any:
			member, ok := v[name]
			if !ok {
				return nil, false
			}
			document = member
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(v) || strconv.Itoa(i) != name {
				return nil, false
			}
			document = v[i]
		default:
			return nil, false
		}
	}
	return document, true
}
