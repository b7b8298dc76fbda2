// Package content reads what a request for idempotency contains: bytes in, a key or a digest out.
package content

import (
	"regexp"
	"strings"
)

// The request fields that carry a key.
const (
	KeyField  = "Idempotency-Key"
	XKeyField = "X-Idempotency-Key"
)

// MaxKey is the longest idempotency key, in characters.
const MaxKey = 255

// A KeyError says why a request's key is refused. Clients read it. It quotes nothing of the
// request.
type KeyError string

func (e KeyError) Error() string { return string(e) }

// Why a key is refused.
const (
	ErrEmptyKey   KeyError = "the key is empty"
	ErrKeyFailed  KeyError = "the key could not be derived from the request"
	errKeyTypes   KeyError = "the request has several Content-Type lines; send one"
	errTwoParts   KeyError = "the body has the member of the key more than once"
	errManyValues KeyError = "the key has more than 10000 values"
	errLongKey    KeyError = "the key is longer than 255 characters"
	errCharacter  KeyError = "the value has a character that is not printable ASCII"
	errList       KeyError = "the value is a list; a request has one key"
	errNotQuoted  KeyError = "the value must be a string in double quotes"
	errString     KeyError = "the string has no closing quote, or a backslash that does not precede a quote or a backslash"
	errParameter  KeyError = "what follows the closing quote is not a well-formed parameter"
	errBareSymbol KeyError = "a value without quotes may not have quotes, commas, semicolons, backslashes or spaces"
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
		return "", ErrEmptyKey
	case notASCII:
		return "", errCharacter
	case value[0] != '"' && strict:
		return "", errNotQuoted
	case value[0] != '"' && strings.Contains(value, ","):
		return "", errList
	case value[0] != '"' && strings.ContainsAny(value, `";\ `):
		return "", errBareSymbol
	case value[0] != '"':
		return value, CheckKey(value)
	}
	if key, ok := strings.CutSuffix(value[1:], `"`); ok && !strings.ContainsAny(key, `"\`) {
		return key, CheckKey(key) // without parameters
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
	return key, CheckKey(key)
}

// CheckKey checks what holds for all keys, wherever they come from.
func CheckKey(key string) error {
	switch {
	case key == "":
		return ErrEmptyKey
	case len(key) > MaxKey:
		return errLongKey
	case strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }):
		return errCharacter
	}
	return nil
}

// QuoteKey returns a key as the value of its header: a structured-field String (RFC 9651, section
// 3.3.3). It returns a KeyError if no server accepts the key.
func QuoteKey(key string) (string, error) {
	return `"` + escaper.Replace(key) + `"`, CheckKey(key)
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// IsToken reports whether s is a token of RFC 9110: a method's or field's name.
func IsToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= '\x7f' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}
