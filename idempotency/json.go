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

// maxDepth bounds how deeply a JSON document with a canonical form may be nested.
const maxDepth = 1000

// errNotPlain: the document has no canonical form, because two readers could understand it
// differently.
var errNotPlain = errors.New("the JSON document is ambiguous")

// canonicalJSON returns a form of the document that is the same for two documents only if they mean
// the same: members sorted, no white space, strings unescaped, numbers as they are spelled, because
// 1.0 may not be 1. It returns an error for what is not JSON, and for what readers disagree about:
// a member that is there twice, text that is not Unicode.
func canonicalJSON(document []byte) ([]byte, error) {
	if !utf8.Valid(document) {
		return nil, errNotPlain
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	form, err := canonicalValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errNotPlain
	}
	return form, nil
}

// canonicalValue returns the canonical form of the next value.
func canonicalValue(d *json.Decoder, depth int) ([]byte, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case nil:
		return []byte("null"), nil
	case bool:
		return strconv.AppendBool(nil, t), nil
	case json.Number:
		return []byte(t), nil
	case string:
		if strings.ContainsRune(t, utf8.RuneError) {
			return nil, errNotPlain // perhaps half of a surrogate pair
		}
		return strconv.AppendQuote(nil, t), nil
	}
	if depth == maxDepth {
		return nil, errNotPlain
	}
	isObject := token == json.Delim('{')
	var elements []string
	names := make(map[string]bool)
	for d.More() {
		var name []byte
		if isObject {
			if name, err = canonicalValue(d, depth+1); err != nil {
				return nil, err
			}
			if names[string(name)] {
				return nil, errNotPlain
			}
			names[string(name)] = true
			name = append(name, ':')
		}
		value, err := canonicalValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		elements = append(elements, string(name)+string(value))
	}
	closing, err := d.Token()
	if err != nil {
		return nil, err
	}
	if isObject {
		slices.Sort(elements)
	}
	return []byte(token.(json.Delim).String() + strings.Join(elements, ",") + closing.(json.Delim).String()), nil
}

// decodeJSON returns what a document has, with numbers as they are spelled.
func decodeJSON(document []byte) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	if err = d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errNotPlain // something follows the document
	}
	return value, nil
}

// pointAt returns the part of a decoded document that field names: a member of the object or, if
// field begins with "/", a JSON pointer (RFC 6901).
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
