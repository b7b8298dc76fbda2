package idempotency

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/dibs-go/dibs/internal/content"
)

// A KeyFunc derives the key of a request; see Options.Key.
type KeyFunc = func(r *http.Request, body io.ReadSeeker) (string, error)

// KeyHeader derives the key from another header than Idempotency-Key, such as a webhook's event id.
// The value counts as it stands. A request without the header has no key; a request with several
// such headers is refused. It panics if no key can be in the header (KeyFieldFault).
func KeyHeader(name string) KeyFunc {
	if fault := KeyFieldFault(name); fault != "" {
		panic(fmt.Sprintf("idempotency: KeyHeader: %q %s", name, fault))
	}
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request, _ io.ReadSeeker) (string, error) {
		lines := r.Header[name]
		switch {
		case len(lines) == 0:
			return "", nil
		case len(lines) > 1:
			return "", errSeveral
		case lines[0] == "":
			return "", content.ErrEmptyKey
		}
		return lines[0], nil
	}
}

// KeyJSON derives the key from a member of a JSON body. field is the name of a member of the
// object, or a JSON pointer, which begins with "/". A string counts as it is, and a number as it is
// spelled. Of a list, all elements count, in order. If the body is an array, that member of each
// element counts. Within a value, "," is written "%2C" and "%" is written "%25". A request has no
// key if its body is not JSON or does not have the member. Any other value, a member that is there
// twice, and more than 10000 values are refused. The body may be compressed with gzip or deflate. If
// it then holds more than 256 KiB, or the objects and arrays on the way to the member have more than
// 20000 members, the request is refused with 413.
func KeyJSON(field string) KeyFunc {
	path := pathOf(field)
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		in, err := contentOf(r, body)
		if err != nil {
			return "", unlessNoContent(err)
		}
		var key joined
		err = keyOf(newDocument(in), path, !strings.HasPrefix(field, "/"), &key)
		_, refused := errors.AsType[content.KeyError](err)
		switch {
		case in.err != nil:
			return "", in.err
		case refused || err == errTooLarge:
			return "", err
		case err != nil: // no JSON, or no such member
			return "", nil
		case key.n == 1:
			return separators.Replace(key.first), nil // which two values cannot make
		}
		return key.String(), nil
	}
}

// keyOf adds the values of a part of a document to the key.
func keyOf(d *document, path []string, each bool, key *joined) error {
	value := func(first json.Token) error { return addValues(d, first, key) }
	first, err := d.Token()
	switch {
	case err != nil:
		return err
	case each && first == json.Delim('['):
		err = d.each(func(int) error { return d.part(path, value) })
	default:
		err = d.partOf(first, path, value)
	}
	if err != nil {
		return err
	}
	return d.end()
}

// addValues adds the value whose first token was read, or the elements of a list.
func addValues(d *document, first json.Token, key *joined) error {
	if first != json.Delim('[') {
		return key.addScalar(first)
	}
	return d.each(func(int) error {
		token, err := d.Token()
		if err != nil {
			return err
		}
		return key.addScalar(token)
	})
}

// KeyForm derives the key from a field of a form (application/x-www-form-urlencoded). A request has
// no key if its body is not a form or does not have the field. A field that is empty, or there more
// than once, is refused, and so are several Content-Type lines. The body may be compressed with gzip
// or deflate. If it then holds more than 256 KiB, or the form has more than 10000 fields, the request
// is refused with 413.
func KeyForm(field string) KeyFunc {
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		types := r.Header["Content-Type"]
		if len(types) > 1 {
			return "", errKeyTypes
		}
		media, _, err := mime.ParseMediaType(strings.Join(types, ""))
		if err != nil || media != "application/x-www-form-urlencoded" {
			return "", nil
		}
		in, err := contentOf(r, body)
		if err != nil {
			return "", unlessNoContent(err)
		}
		key, n := "", 0
		malformed := formFields(in, func(name, value string) {
			if name == field {
				key, n = value, n+1
			}
		})
		switch {
		case in.err != nil:
			return "", in.err
		case malformed == errTooLarge:
			return "", errTooLarge
		case malformed != nil || n == 0:
			return "", nil
		case n > 1:
			return "", errKeyFailed
		case key == "":
			return "", content.ErrEmptyKey
		}
		return key, nil
	}
}

// unlessNoContent returns nil for errNoContent, because a body that cannot be looked into has no
// key.
func unlessNoContent(err error) error {
	if err == errNoContent {
		return nil
	}
	return err
}

// KeyOf derives a key from several parts. A request that lacks a part has no key.
// It panics if a part is nil.
func KeyOf(parts ...KeyFunc) KeyFunc {
	needAll("KeyOf", parts)
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		values := make([]string, len(parts))
		for i, part := range parts {
			var err error
			if values[i], err = derive(part, r, body); err != nil || values[i] == "" {
				return "", err
			}
		}
		return joinKeys(values), nil
	}
}

// KeyFirst derives the key by the first function that finds one. It panics if one is nil.
func KeyFirst(ways ...KeyFunc) KeyFunc {
	needAll("KeyFirst", ways)
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		for _, way := range ways {
			if key, err := derive(way, r, body); err != nil || key != "" {
				return key, err
			}
		}
		return "", nil
	}
}

// needAll panics before a request is served if a function of the call is nil.
func needAll(call string, functions []KeyFunc) {
	for i, f := range functions {
		if f == nil {
			panic(fmt.Sprintf("idempotency: argument %d of %s is nil; it must be a function that finds a key", i+1, call))
		}
	}
}

// derive derives a part of the key. Each part reads the body from its beginning.
func derive(part KeyFunc, r *http.Request, body io.ReadSeeker) (string, error) {
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	return part(r, body)
}

// joinKeys makes one key of several values. Other values make another key. A key that would be too
// long is replaced by its digest.
func joinKeys(values []string) string {
	var key joined
	for _, value := range values {
		key.add(value)
	}
	return key.String()
}

// A joined is a key that is made of values, of which it keeps no more than the longest key has.
type joined struct {
	n     int
	first string
	text  []byte // of several
	sum   hash.Hash
}

// maxValues is how many values a key may be made of.
const maxValues = 10000

// addScalar adds a value of a JSON document.
func (j *joined) addScalar(token json.Token) error {
	text, ok := token.(string)
	if number, isNumber := token.(json.Number); isNumber {
		text, ok = number.String(), true
	}
	switch {
	case !ok:
		return errKeyFailed
	case text == "":
		return content.ErrEmptyKey
	case j.n == maxValues:
		return errManyValues
	}
	j.add(text)
	return nil
}

// add adds a value.
func (j *joined) add(value string) {
	switch j.n++; j.n {
	case 1:
		j.first = value
		return
	case 2:
		j.sum = sha256.New()
		j.write(separators.Replace(j.first))
	}
	j.write("," + separators.Replace(value))
}

func (j *joined) write(text string) {
	_, _ = io.WriteString(j.sum, text) // a hash accepts everything
	if len(j.text) <= MaxKey {
		j.text = append(j.text, text...)
	}
}

// String returns the key; "" without a value, and a single value as it is.
func (j *joined) String() string {
	switch {
	case j.n < 2:
		return j.first
	case len(j.text) > MaxKey:
		return "sha256:" + base64.RawURLEncoding.EncodeToString(j.sum.Sum(nil))
	}
	return string(j.text)
}

var separators = strings.NewReplacer("%", "%25", ",", "%2C")
