package idempotency

import (
	"errors"
	"strings"
)

// Why a value is not a structured-field String (RFC 9651, section 3.3.3). The
// texts go to clients and quote nothing of what was sent.
var (
	errQuote      = errors.New(`the value has an opening quote and no closing one`)
	errEscape     = errors.New(`within the quotes, a backslash may only precede a quote or a backslash`)
	errCharacter  = errors.New(`the value has a character that is not printable ASCII`)
	errTrailing   = errors.New(`something follows the closing quote that is not a parameter`)
	errParameter  = errors.New(`a parameter after the closing quote is malformed`)
	errList       = errors.New(`the value is a list; a request has one key`)
	errNotQuoted  = errors.New(`the value must be a string in double quotes`)
	errNoString   = errors.New(`the value is empty`)
	errBareSymbol = errors.New(`an unquoted value may not have quotes, commas, semicolons, backslashes or spaces`)
)

// parseString parses a structured-field Item whose bare item is a String, and
// returns the String. Parameters must be well-formed and are dropped.
func parseString(s string) (string, error) {
	s = strings.Trim(s, " ")
	if s == "" {
		return "", errNoString
	}
	if s[0] != '"' {
		return "", errNotQuoted
	}
	value, rest, err := cutString(s)
	if err != nil {
		return "", err
	}
	if rest == "" {
		return value, nil
	}
	rest, err = skipParameters(rest)
	switch {
	case err != nil:
		return "", err
	case strings.HasPrefix(strings.TrimLeft(rest, " \t"), ","):
		return "", errList
	case rest != "":
		return "", errTrailing
	}
	return value, nil
}

// cutString takes a String, which s begins with, off s.
func cutString(s string) (value, rest string, err error) {
	var unescaped []byte // nil until there is something to unescape
	start := 1
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			if unescaped == nil {
				return s[1:i], s[i+1:], nil
			}
			return string(append(unescaped, s[start:i]...)), s[i+1:], nil
		case c == '\\':
			if i+1 == len(s) {
				return "", "", errQuote
			}
			if s[i+1] != '"' && s[i+1] != '\\' {
				return "", "", errEscape
			}
			unescaped = append(unescaped, s[start:i]...)
			i++
			start = i
		case c < ' ' || c > '~':
			return "", "", errCharacter
		}
	}
	return "", "", errQuote
}

// skipParameters takes parameters off s, which follows a bare item.
func skipParameters(s string) (rest string, err error) {
	for strings.HasPrefix(s, ";") {
		s = strings.TrimLeft(s[1:], " ")
		n := parameterName(s)
		if n == 0 {
			return "", errParameter
		}
		s = s[n:]
		if !strings.HasPrefix(s, "=") {
			continue // true
		}
		if s, err = skipBareItem(s[1:]); err != nil {
			return "", err
		}
	}
	return s, nil
}

// parameterName returns the length of the name that s begins with.
func parameterName(s string) int {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', c == '*':
		case i > 0 && ('0' <= c && c <= '9' || c == '_' || c == '-' || c == '.'):
		default:
			return i
		}
	}
	return len(s)
}

// skipBareItem takes a bare item of any type off s.
func skipBareItem(s string) (rest string, err error) {
	if s == "" {
		return "", errParameter
	}
	n := 0
	switch c := s[0]; {
	case c == '"':
		_, rest, err = cutString(s)
		return rest, err
	case c == '%':
		n = displayString(s)
	case c == ':':
		n = byteSequence(s)
	case c == '?':
		if len(s) >= 2 && (s[1] == '0' || s[1] == '1') {
			n = 2
		}
	case c == '@':
		if m, decimal := number(s[1:]); m > 0 && !decimal {
			n = 1 + m
		}
	case c == '-' || '0' <= c && c <= '9':
		n, _ = number(s)
	case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '*':
		n = 1
		for n < len(s) && (tokenChar[s[n]] || s[n] == ':' || s[n] == '/') {
			n++
		}
	}
	if n == 0 {
		return "", errParameter
	}
	return s[n:], nil
}

// number returns the length of the Integer or Decimal that s begins with; 0 when
// there is none.
func number(s string) (n int, decimal bool) {
	sign := 0
	if strings.HasPrefix(s, "-") {
		sign = 1
	}
	whole := digits(s[sign:])
	n = sign + whole
	if whole == 0 || whole > 15 {
		return 0, false
	}
	if n == len(s) || s[n] != '.' {
		return n, false
	}
	part := digits(s[n+1:])
	if whole > 12 || part == 0 || part > 3 {
		return 0, false
	}
	return n + 1 + part, true
}

func digits(s string) int {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return i
		}
	}
	return len(s)
}

// byteSequence returns the length of the Byte Sequence that s begins with; 0
// when it is malformed. Padding is not required of a sender.
func byteSequence(s string) int {
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == ':':
			return i + 1
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '+', c == '/', c == '=':
		default:
			return 0
		}
	}
	return 0
}

// displayString returns the length of the Display String that s begins with; 0
// when it is malformed.
func displayString(s string) int {
	if len(s) < 2 || s[1] != '"' {
		return 0
	}
	for i := 2; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return i + 1
		case c == '%':
			if i+2 >= len(s) || !lowerHex(s[i+1]) || !lowerHex(s[i+2]) {
				return 0
			}
			i += 2
		case c < ' ' || c > '~':
			return 0
		}
	}
	return 0
}

func lowerHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }
