package proxy

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// value reads and shows the field of a setting. It is a pflag.Value.
type value struct {
	kind string // the word that help shows
	// alone is what the flag without a text means; "" if it needs one.
	alone string
	set   func(string) error
	show  func() string
	// setList sets a list's elements; nil for other kinds.
	setList func([]string) error
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

// orElse sets what the flag without a text means.
func (v value) orElse(alone string) value {
	v.alone = alone
	return v
}

// text is any text that passes the checks.
func text(field *string, checks ...func(string) error) value {
	return value{kind: "string", show: func() string { return *field }, set: func(s string) error {
		for _, check := range checks {
			if err := check(s); err != nil {
				return err
			}
		}
		*field = s
		return nil
	}}
}

// word is one of two words.
func word[T ~string](field *T, a, b T) value {
	return value{kind: "string", show: func() string { return string(*field) }, set: func(s string) error {
		if T(s) != a && T(s) != b {
			return fmt.Errorf("%q is neither %s nor %s", s, a, b)
		}
		*field = T(s)
		return nil
	}}
}

// yes is true or false; on and off are accepted too.
func yes(field *bool) value {
	return value{kind: "bool", alone: "true", show: func() string { return strconv.FormatBool(*field) }, set: func(s string) error {
		switch s {
		case "true", "on":
			*field = true
		case "false", "off":
			*field = false
		default:
			return fmt.Errorf("%q is neither true nor false", s)
		}
		return nil
	}}
}

// number is a whole number from least to most.
func number(field *int, least, most int) value {
	return value{kind: "int", show: func() string { return strconv.Itoa(*field) }, set: func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%q is not %d to %d", s, least, most)
		}
		*field = n
		return nil
	}}
}

// forever is the most of a span that has no upper limit.
const forever = time.Duration(math.MaxInt64)

// span is a duration from least to most, as Go writes it.
func span(field *time.Duration, least, most time.Duration) value {
	return value{kind: "duration", show: func() string { return spanText(*field) }, set: func(s string) error {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			return fmt.Errorf("%q is not a duration: write 30s, 5m or 24h", s)
		case d < least:
			return fmt.Errorf("%s is too short; it must be at least %v", s, least)
		case d > most:
			return fmt.Errorf("%s is too long; it must be at most %v", s, most)
		}
		*field = d
		return nil
	}}
}

// spanText returns a duration without its zeros: 24h, and not 24h0m0s.
func spanText(d time.Duration) string {
	s := d.String()
	switch {
	case d == 0:
		return "0" // which help does not show
	case strings.HasSuffix(s, "h0m0s"):
		return strings.TrimSuffix(s, "0m0s")
	case strings.HasSuffix(s, "m0s"):
		return strings.TrimSuffix(s, "0s")
	}
	return s
}

// size is a number of bytes, at least one, with or without a unit.
func size(field *int64) value {
	return value{kind: "size", show: func() string { return sizeText(*field) }, set: func(s string) error {
		n, err := parseSize(s)
		if err == nil {
			*field = n
		}
		return err
	}}
}

func parseSize(s string) (int64, error) {
	digits, shift := s, 0
	if rest, ok := strings.CutSuffix(s, "KiB"); ok {
		digits, shift = rest, 10
	} else if rest, ok := strings.CutSuffix(s, "MiB"); ok {
		digits, shift = rest, 20
	}
	n, err := strconv.ParseUint(strings.TrimRight(digits, " "), 10, 63-shift)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a size: write bytes, or a number with KiB or MiB", s)
	case n == 0:
		return 0, errors.New("it must be at least 1 byte")
	}
	return int64(n << shift), nil
}

// sizeText returns a size with the largest unit that divides it.
func sizeText(n int64) string {
	switch {
	case n != 0 && n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + "MiB"
	case n != 0 && n%(1<<10) == 0:
		return strconv.FormatInt(n>>10, 10) + "KiB"
	}
	return strconv.FormatInt(n, 10)
}

// list is a list with commas; in a configuration file also a sequence. check, unless nil,
// refuses elements.
func list(field *[]string, check func(string) error) value {
	set := func(elements []string) error {
		if check != nil {
			for _, element := range elements {
				if err := check(element); err != nil {
					return err
				}
			}
		}
		*field = elements
		return nil
	}
	return value{
		kind: "list", show: func() string { return strings.Join(*field, ",") }, setList: set,
		set: func(s string) error {
			if s == "" {
				return set(nil)
			}
			elements := strings.Split(s, ",")
			for i := range elements {
				elements[i] = strings.TrimSpace(elements[i])
			}
			if slices.Contains(elements, "") {
				return fmt.Errorf("%q has an empty element", s)
			}
			return set(elements)
		},
	}
}

// host is the name of a host, with or without a port.
func host(field *string) value {
	return text(field, func(s string) error {
		if strings.ContainsAny(s, "/@ ") {
			return fmt.Errorf("%q is not a host", s)
		}
		return nil
	})
}

// path is a pattern of paths.
func path(field *pattern) value {
	return value{kind: "string", show: func() string { return field.String() }, set: func(s string) (err error) {
		*field, err = parsePattern(s)
		return err
	}}
}
