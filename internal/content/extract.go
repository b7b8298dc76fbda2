package content

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"mime"
	"strings"
)

// A Path leads to the part of a JSON document that is a request's key.
type Path struct {
	names []string
	each  bool // of a document that is an array, each element has such a part
}

// PathOf returns the path to a member of an object, or to a JSON pointer if field begins with "/".
func PathOf(field string) Path { return Path{pathOf(field), !strings.HasPrefix(field, "/")} }

// Key returns the key that the path leads to; "" if the body is not JSON or does not have the part. It
// returns a KeyError for a part that cannot be a key, ErrTooLarge, or the error of the Taker or of reading.
func (p Path) Key(encodings []string, body io.ReadSeeker) (string, error) {
	in, err := Open(encodings, body)
	if err != nil {
		return "", unlessNoContent(err)
	}
	var key joined
	err = keyOf(NewDocument(in), p.names, p.each, &key)
	_, refused := errors.AsType[KeyError](err)
	switch {
	case in.err != nil:
		return "", in.err
	case refused || err == ErrTooLarge:
		return "", err
	case err != nil: // no JSON, or no such member
		return "", nil
	case key.n == 1:
		return separators.Replace(key.first), nil // which two values cannot make
	}
	return key.String(), nil
}

// keyOf adds the values of a part of a document to the key.
func keyOf(d *Document, path []string, each bool, key *joined) error {
	value := func(first json.Token) error { return addValues(d, first, key) }
	first, err := d.Token()
	switch {
	case err != nil:
		return err
	case each && first == json.Delim('['):
		err = d.Each(func(int) error { return d.part(path, value) })
	default:
		err = d.partOf(first, path, value)
	}
	if err != nil {
		return err
	}
	return d.End()
}

// addValues adds the value whose first token was read, or the elements of a list.
func addValues(d *Document, first json.Token, key *joined) error {
	if first != json.Delim('[') {
		return key.addScalar(first)
	}
	return d.Each(func(int) error {
		token, err := d.Token()
		if err != nil {
			return err
		}
		return key.addScalar(token)
	})
}

// FormKey returns the key in a field of a form; "" if the body is not a form or does not have the field.
// Its errors are those of Path.Key.
func FormKey(types, encodings []string, body io.ReadSeeker, field string) (string, error) {
	if len(types) > 1 {
		return "", errKeyTypes
	}
	media, _, err := mime.ParseMediaType(strings.Join(types, ""))
	if err != nil || media != "application/x-www-form-urlencoded" {
		return "", nil
	}
	in, err := Open(encodings, body)
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
	case malformed == ErrTooLarge:
		return "", ErrTooLarge
	case malformed != nil || n == 0:
		return "", nil
	case n > 1:
		return "", ErrKeyFailed
	case key == "":
		return "", ErrEmptyKey
	}
	return key, nil
}

// unlessNoContent returns nil for ErrUnreadable, because a body that cannot be looked into has no
// key.
func unlessNoContent(err error) error {
	if err == ErrUnreadable {
		return nil
	}
	return err
}

// Join makes one key of several values. Other values make another key. A key that would be too
// long is replaced by its digest.
func Join(values []string) string {
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
		return ErrKeyFailed
	case text == "":
		return ErrEmptyKey
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
