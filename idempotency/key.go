package idempotency

import (
	"cmp"
	"errors"
	"net/http"
	"regexp"
	"strings"
)

// The request fields that carry a key.
const (
	keyField  = "Idempotency-Key"
	xKeyField = "X-Idempotency-Key"
)

// MaxKey is the longest idempotency key, in characters.
const MaxKey = 255

// A keyError says why a request's key is refused. Clients read it. It quotes nothing of the
// request.
type keyError string

func (e keyError) Error() string { return string(e) }

const (
	errSeveral    keyError = "the header is there more than once"
	errTwoKeys    keyError = "Idempotency-Key and X-Idempotency-Key differ"
	errKeyTypes   keyError = "the request has several Content-Type lines; send one"
	errEmptyKey   keyError = "the key is empty"
	errLongKey    keyError = "the key is longer than 255 characters"
	errKeyFailed  keyError = "the key could not be derived from the request"
	errTwoParts   keyError = "the body has the member of the key more than once"
	errManyValues keyError = "the key has more than 10000 values"
	errCharacter  keyError = "the value has a character that is not printable ASCII"
	errList       keyError = "the value is a list; a request has one key"
	errNotQuoted  keyError = "the value must be a string in double quotes"
	errString     keyError = "the string has no closing quote, or a backslash that does not precede a quote or a backslash"
	errParameter  keyError = "what follows the closing quote is not a well-formed parameter"
	errBareSymbol keyError = "a value without quotes may not have quotes, commas, semicolons, backslashes or spaces"
)

// quoted matches a String, and parameters what may follow it (RFC 9651, sections
// 3.1.2 and 3.3).
var (
	quoted     = regexp.MustCompile(`^"(?:[ !#-\[\]-~]|\\["\\])*"`)
	parameters = regexp.MustCompile(`^(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:` + strings.Join([]string{
		`"(?:[ !#-\[\]-~]|\\["\\])*"`, // String
		`-?\d{1,12}\.\d{1,3}`,         // Decimal
		`-?\d{1,15}`,                  // Integer
		`@-?\d{1,15}`,                 // Date
		`\?[01]`,                      // Boolean
		`:[A-Za-z0-9+/=]*:`,           // Byte Sequence
		`[A-Za-z*][A-Za-z0-9!#$%&'*+.^_` + "`" + `|~:/-]*`, // Token
		`%"(?:[ !#$&-~]|%[0-9a-f]{2})*"`,                   // Display String
	}, "|") + `))?)*$`)
	unescaper = strings.NewReplacer(`\\`, `\`, `\"`, `"`)
)

// ParseKey parses the value of an Idempotency-Key header: a structured-field String or, unless
// strict, a bare value. `"abc"` and `abc` are the same key. The error says what is wrong and quotes
// nothing of the value.
func ParseKey(value string, strict bool) (string, error) {
	value = strings.Trim(value, " ")
	notASCII := strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' })
	switch {
	case value == "":
		return "", errEmptyKey
	case notASCII:
		return "", errCharacter
	case value[0] != '"' && strict:
		return "", errNotQuoted
	case value[0] != '"' && strings.Contains(value, ","):
		return "", errList
	case value[0] != '"' && strings.ContainsAny(value, `";\ `):
		return "", errBareSymbol
	case value[0] != '"':
		return value, checkKey(value)
	}
	if key, ok := strings.CutSuffix(value[1:], `"`); ok && !strings.ContainsAny(key, `"\`) {
		return key, checkKey(key) // without parameters
	}
	text := quoted.FindString(value)
	switch rest := value[len(text):]; {
	case text == "":
		return "", errString
	case strings.HasPrefix(strings.TrimLeft(rest, " "), ","):
		return "", errList
	case !parameters.MatchString(rest):
		return "", errParameter
	}
	key := unescaper.Replace(text[1 : len(text)-1])
	return key, checkKey(key)
}

// checkKey checks what holds for all keys, wherever they come from.
func checkKey(key string) error {
	switch {
	case key == "":
		return errEmptyKey
	case len(key) > MaxKey:
		return errLongKey
	case strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }):
		return errCharacter
	}
	return nil
}

// keyProblem is the answer to a key that is refused. An error that is not ours may quote the
// request, so the client does not get its text.
func keyProblem(err error) Problem {
	ours, ok := errors.AsType[keyError](err)
	if !ok {
		ours = errKeyFailed
	}
	p := problemKeyInvalid
	p.Detail = "Nothing was run: " + ours.Error() + "."
	return p
}

// headerKey returns the key in the request's headers; ok is false if there is none.
func (o *Options) headerKey(h http.Header) (key string, ok bool, err error) {
	key, ok, err = fieldKey(h[keyField], o.StrictKey)
	if err != nil || o.IgnoreXKey {
		return key, ok, err
	}
	xkey, xok, err := fieldKey(h[xKeyField], o.StrictKey)
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
