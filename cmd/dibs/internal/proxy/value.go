package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/quantity"
)

// value reads and shows the field of a setting. It is a pflag.Value.
type value struct {
	kind  string   // the word that help shows
	words []string // of which its text is one; nil for other kinds
	alone string   // the text of a flag without one; "" if it needs a text
	set   func(string) error
	show  func() string
	// setList sets the elements of a list; nil for other kinds.
	setList func([]string) error
	// public says that the text is true or false, a number or one of some words, which can be no secret.
	public bool
}

// Set sets the field from its text.
func (v value) Set(s string) error { return v.set(s) }

// String returns the field's text.
func (v value) String() string {
	if v.show == nil {
		return ""
	}
	return v.show()
}

// Type returns the word that help shows.
func (v value) Type() string { return v.kind }

// open says that the text can be no secret.
func (v value) open() value {
	v.public = true
	return v
}

// orElse sets the text of a flag without one.
func (v value) orElse(alone string) value {
	v.alone = alone
	return v
}

// filled returns the value of a flag. An empty text is refused, because it is mostly a variable
// of the shell that is not set, and "--key-ring ”" would store answers in plain text.
func (v value) filled() value {
	set := v.set
	v.set = func(s string) error {
		if s == "" {
			return errors.New("it is empty; leave the flag out for the default")
		}
		return set(s)
	}
	return v
}

// of returns the value of a field.
func of[T any](field *T, kind string, show func(T) string, parse func(string) (T, error)) value {
	return value{kind: kind, show: func() string { return show(*field) }, set: func(s string) error {
		v, err := parse(s)
		if err == nil {
			*field = v
		}
		return err
	}}
}

// text is any text that check, unless nil, accepts.
func text(field *string, check func(string) error) value {
	return of(field, "string", func(s string) string { return s }, func(s string) (string, error) {
		if check == nil {
			return s, nil
		}
		return s, check(s)
	})
}

// word is one of these words.
func word[T ~string](field *T, words ...T) value {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	v := of(field, "string", func(t T) string { return string(t) }, func(s string) (T, error) {
		switch {
		case s == "":
			return "", errors.New("it is empty; leave it out for the default")
		case !slices.Contains(texts, s):
			return "", fmt.Errorf("%q is none of %s", s, strings.Join(texts, ", "))
		}
		return T(s), nil
	}).open()
	v.words = texts
	return v
}

// yes is true or false; on and off are accepted too.
func yes(field *bool) value {
	return of(field, "bool", strconv.FormatBool, func(s string) (bool, error) {
		if !slices.Contains([]string{"true", "on", "false", "off"}, s) {
			return false, fmt.Errorf("%q is neither true nor false", s)
		}
		return s == "true" || s == "on", nil
	}).orElse("true").open()
}

// number is a whole number.
func number(field *int) value {
	return of(field, "int", strconv.Itoa, func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil {
			return 0, fmt.Errorf("%q is not a whole number", s)
		}
		return n, nil
	}).open()
}

// span is a duration that check, unless nil, accepts.
func span(field *time.Duration, check func(time.Duration) error) value {
	return of(field, "duration", quantity.DurationText, func(s string) (time.Duration, error) {
		d, err := quantity.Duration(s)
		if err == nil && check != nil {
			err = check(d)
		}
		return d, err
	}).open()
}

// atLeast refuses a shorter duration.
func atLeast(least time.Duration) func(time.Duration) error {
	return func(d time.Duration) error {
		if d < least {
			return fmt.Errorf("%s is too short; it must be at least %s", quantity.DurationText(d), quantity.DurationText(least))
		}
		return nil
	}
}

// size is a number of bytes, with or without a unit.
func size(field *int64) value { return of(field, "size", quantity.SizeText, quantity.Size).open() }

// list is a list with commas; in a configuration file also a sequence. check, unless nil,
// refuses elements.
func list(field *[]string, check func(string) error) value {
	setList := func(elements []string) error {
		for _, element := range elements {
			if check != nil {
				if err := check(element); err != nil {
					return err
				}
			}
		}
		*field = elements
		return nil
	}
	set := func(s string) error {
		if s == "" {
			return setList(nil)
		}
		elements := strings.Split(s, ",")
		for i := range elements {
			if elements[i] = strings.TrimSpace(elements[i]); elements[i] == "" {
				return fmt.Errorf("%q has an empty element", s)
			}
		}
		return setList(elements)
	}
	return value{kind: "list", show: func() string { return strings.Join(*field, ",") }, set: set, setList: setList}
}
