package idempotency

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/dibs-go/dibs/internal/content"
)

// MaxKey is the longest idempotency key, in characters.
const MaxKey = content.MaxKey

// ParseKey parses the value of an Idempotency-Key header: a structured-field String or, unless
// strict, a bare value. `"abc"` and `abc` are the same key. The error says what is wrong and quotes
// nothing of the value.
func ParseKey(value string, strict bool) (string, error) { return content.ParseKey(value, strict) }

// Why a key is refused.
const (
	errSeveral content.KeyError = "the header is there more than once"
	errTwoKeys content.KeyError = "Idempotency-Key and X-Idempotency-Key differ"
)

// keyProblem is the answer to a key that is refused. An error that is not ours may quote the
// request, so the client does not get its text.
func keyProblem(err error) Problem {
	ours, ok := errors.AsType[content.KeyError](err)
	if !ok {
		ours = content.ErrKeyFailed
	}
	p := problemKeyInvalid
	p.Detail = "Nothing was run: " + ours.Error() + "."
	return p
}

// headerKey returns the key in the request's headers; ok is false if there is none.
func (o *Options) headerKey(h http.Header) (key string, ok bool, err error) {
	key, ok, err = fieldKey(h[content.KeyField], o.StrictKey)
	if err != nil {
		return key, ok, err
	}
	xkey, xok, err := fieldKey(h[content.XKeyField], o.StrictKey)
	if err == nil && ok && xok && key != xkey {
		err = errTwoKeys
	}
	return cmp.Or(key, xkey), ok || xok, err
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
