package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// errNotPlain: the document has no canonical form, because two readers could understand it
// differently.
var errNotPlain = errors.New("the JSON document is ambiguous")

// maxDepth bounds how deep a document with a canonical form may be nested, because each level copies
// what is in it.
const maxDepth = 100

// canonicalJSON returns a form of the document that is the same for two documents only if they mean
// the same: members sorted, no white space, strings unescaped, numbers as they are spelled, because
// 1.0 may not be 1. It returns an error for what is not JSON, and for what readers disagree about:
// a member that is there twice, text that is not Unicode.
func canonicalJSON(document []byte) ([]byte, error) {
	if !utf8.Valid(document) || !json.Valid(document) {
		return nil, errNotPlain
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	return canonicalValue(d, maxDepth)
}

// canonicalValue returns the canonical form of the next value of a valid document.
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
	if depth == 0 {
		return nil, errNotPlain
	}
	isObject := token == json.Delim('{')
	var elements []string
	names := make(map[string]bool)
	for d.More() {
		element, err := canonicalValue(d, depth-1)
		if err != nil {
			return nil, err
		}
		if isObject {
			if names[string(element)] {
				return nil, errNotPlain
			}
			names[string(element)] = true
			value, err := canonicalValue(d, depth-1)
			if err != nil {
				return nil, err
			}
			element = append(append(element, ':'), value...)
		}
		elements = append(elements, string(element))
	}
	_, _ = d.Token() // the closing bracket of a valid document
	if !isObject {
		return []byte("[" + strings.Join(elements, ",") + "]"), nil
	}
	slices.Sort(elements)
	return []byte("{" + strings.Join(elements, ",") + "}"), nil
}

// decodeJSON returns what a document has, with numbers as they are spelled.
func decodeJSON(document []byte) (value any, err error) {
	if !json.Valid(document) {
		return nil, errNotPlain
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	err = d.Decode(&value)
	return value, err
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
