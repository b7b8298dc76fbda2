package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// The request fields that carry a key.
const (
	keyField  = "Idempotency-Key"
	xKeyField = "X-Idempotency-Key"
)

// MaxKey is the longest idempotency key, in characters.
const MaxKey = 255

// Why a request's key is refused. The texts go to clients and quote nothing of
// what was sent.
var (
	errSeveral   = errors.New("the header is there more than once")
	errTwoKeys   = errors.New("Idempotency-Key and X-Idempotency-Key differ")
	errEmptyKey  = errors.New("the key is empty")
	errLongKey   = fmt.Errorf("the key is longer than %d characters", MaxKey)
	errKeyFailed = errors.New("the key could not be derived from the request")
)

// keyErrors are all of them.
var keyErrors = []error{
	errSeveral, errTwoKeys, errEmptyKey, errLongKey, errKeyFailed,
	errQuote, errEscape, errCharacter, errTrailing, errParameter, errList, errNotQuoted, errNoString, errBareSymbol,
}

// ParseKey parses the value of an Idempotency-Key header: a structured-field
// String or, unless strict, a bare value. `"abc"` and `abc` are the same key.
// The error says what is wrong and quotes nothing of the value.
func ParseKey(value string, strict bool) (string, error) {
	key, err := parseString(value)
	if errors.Is(err, errNotQuoted) && !strict {
		key, err = parseBare(strings.Trim(value, " "))
	}
	if err != nil {
		return "", err
	}
	return key, checkKey(key)
}

// parseBare accepts the values that clients send which do not quote.
func parseBare(s string) (string, error) {
	for i := range len(s) {
		switch c := s[i]; {
		case c == ',':
			return "", errList
		case c == '"', c == ';', c == '\\', c == ' ':
			return "", errBareSymbol
		case c < ' ' || c > '~':
			return "", errCharacter
		}
	}
	return s, nil
}

// checkKey holds for keys from wherever they come.
func checkKey(key string) error {
	if key == "" {
		return errEmptyKey
	}
	if len(key) > MaxKey {
		return errLongKey
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return errCharacter
		}
	}
	return nil
}

// headerKey returns the key in the request's headers; ok is false when there is
// none.
func (o *Options) headerKey(h http.Header) (key string, ok bool, err error) {
	key, ok, err = fieldKey(h[keyField], o.StrictKey)
	if err != nil || o.IgnoreXKey {
		return key, ok, err
	}
	xkey, xok, err := fieldKey(h[xKeyField], o.StrictKey)
	switch {
	case err != nil:
		return "", true, err
	case ok && xok && key != xkey:
		return "", true, errTwoKeys
	case ok:
		return key, true, nil
	}
	return xkey, xok, nil
}

// fieldKey parses the lines of one field.
func fieldKey(lines []string, strict bool) (key string, ok bool, err error) {
	switch len(lines) {
	case 0:
		return "", false, nil
	case 1:
		key, err = ParseKey(lines[0], strict)
		return key, true, err
	}
	return "", true, errSeveral
}
