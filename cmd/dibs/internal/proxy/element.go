package proxy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/upstream"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/quantity"
	"github.com/dibs-go/dibs/internal/suggest"
)

// checks refuse the text of a setting, or of an element of a list.
var checks = map[string]func(string) error{
	"address":     CheckAddress,
	"field":       checkField,
	"fingerprint": checkFingerprint,
	"key":         refuses(keyPart),
	"method":      checkMethod,
	"namespace":   checkNamespace,
	"page":        checkPage,
	"scope":       refuses(scopePart),
	"trusted":     checkTrusted,
	"upstream":    checkUpstream,
	"window":      checkWindow,
}

// refuses returns the error of a function that reads a text.
func refuses[T any](read func(string) (T, error)) func(string) error {
	return func(s string) error {
		_, err := read(s)
		return err
	}
}

// toolWindow reads an element of ToolWindows.
func toolWindow(s string) (tool string, window time.Duration, err error) {
	i := strings.LastIndexByte(s, '=')
	if i < 1 {
		return "", 0, fmt.Errorf("%q is not TOOL=DURATION, such as charge=10m", s)
	}
	window, err = quantity.Duration(s[i+1:])
	return s[:i], window, err
}

func checkWindow(s string) error {
	_, _, err := toolWindow(s)
	return err
}

func checkUpstream(s string) error {
	_, err := upstream.New(s, nil)
	return err
}

// checkNamespace refuses what the client would refuse.
func checkNamespace(s string) error { return dibs.Key{Namespace: s, Name: "any"}.Validate() }

// checkField refuses what is not the name of a header field.
func checkField(s string) error {
	if !isName(s) {
		return fmt.Errorf("%q is not the name of a header field, such as X-Forwarded-User", s)
	}
	return nil
}

func checkMethod(s string) error {
	if !isName(s) || strings.ToUpper(s) != s {
		return fmt.Errorf("%q is not a method in capitals, such as POST", s)
	}
	return nil
}

// checkFingerprint refuses what is not an element of Fingerprint.
func checkFingerprint(s string) error {
	if words := []string{"json", "multipart", "query-order", "key"}; !slices.Contains(words, s) {
		return suggest.NoneOf(s, words...)
	}
	return nil
}

// scopePart reads an element of Scope.
func scopePart(s string) (part idempotency.ScopePart, err error) {
	kind, name, named := strings.Cut(s, ":")
	switch {
	case s == "credentials":
		return idempotency.ScopeCredentials, nil
	case s == "authorization":
		return idempotency.ScopeAuthorization, nil
	case s == "none":
		return idempotency.ScopeNone, nil
	case !named || kind != "header" && kind != "cookie":
		return part, suggest.NoneOf(s, "credentials", "authorization", "header:NAME", "cookie:NAME", "none")
	case name == "":
		return part, fmt.Errorf("the name is missing after %q", kind+":")
	case kind == "header":
		return idempotency.ScopeHeader(name), fieldFault(name, idempotency.ScopeFieldFault(name))
	}
	return idempotency.ScopeCookie(name), nil
}

// brokenEscape is what a JSON pointer has not.
var brokenEscape = regexp.MustCompile(`~([^01]|$)`)

// keyPart reads an element of Key: one place of a key, or several alternatives.
func keyPart(s string) (idempotency.KeyFunc, error) {
	var alternatives []idempotency.KeyFunc
	for text := range strings.SplitSeq(s, "|") {
		kind, name, _ := strings.Cut(text, ":")
		switch {
		case name != "" && kind == "header" && !isName(name):
			return nil, fmt.Errorf("%q is not the name of a header", name)
		case name != "" && kind == "header":
			if err := fieldFault(name, idempotency.KeyFieldFault(name)); err != nil {
				return nil, err
			}
			alternatives = append(alternatives, idempotency.KeyHeader(name))
		case kind == "json" && strings.HasPrefix(name, "/") && brokenEscape.MatchString(name):
			return nil, fmt.Errorf("%q is not a JSON pointer (RFC 6901): write ~0 for ~, and ~1 for / in a name", name)
		case name != "" && kind == "json":
			alternatives = append(alternatives, idempotency.KeyJSON(name))
		case name != "" && kind == "form":
			alternatives = append(alternatives, idempotency.KeyForm(name))
		default:
			return nil, suggest.NoneOf(text, "header:NAME", "json:FIELD", "form:FIELD")
		}
	}
	return idempotency.KeyFirst(alternatives...), nil
}

// isName reports whether s can name a header or a cookie: a token of RFC 9110.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}
