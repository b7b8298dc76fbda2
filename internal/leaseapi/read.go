package leaseapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// TooManyError says that an array has more than MaxElements elements.
type TooManyError struct{ Field string }

func (e *TooManyError) Error() string {
	return fmt.Sprintf("%s has more than %d elements", e.Field, MaxElements)
}

// fields are the fields of an object.
type fields []field

// field is where a value goes: a pointer, or a func(*reader) error that reads it.
type field struct {
	name string
	into any
}

func (f *field) read(r *reader) error {
	if read, ok := f.into.(func(*reader) error); ok {
		return read(r)
	}
	raw := r.value()
	if len(raw) == 0 {
		return r.unlike(kindOf(reflect.TypeOf(f.into)))
	}
	if s, ok := plain(raw); ok {
		switch into := f.into.(type) {
		case *string:
			*into = s
			return nil
		case **string:
			*into = new(s)
			return nil
		case **text:
			*into = new(text(s))
			return nil
		}
	}
	if into, ok := f.into.(**int64); ok && raw[0] >= '1' && raw[0] <= '9' {
		if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
			*into = new(n)
			return nil
		}
	}
	return json.Unmarshal(raw, f.into)
}

// plain returns a text that has no escapes. Most have none, and [json.Unmarshal] takes ten times as long.
func plain(raw []byte) (string, bool) {
	if raw[0] != '"' || slices.ContainsFunc(raw, func(c byte) bool { return c < ' ' || c == '\\' }) {
		return "", false
	}
	return string(raw[1 : len(raw)-1]), true
}

// reader reads JSON of which each value is known to be an object, an array, or neither. So a
// body can be refused before it takes memory.
type reader struct{ text []byte } // what is left of it

const valid = "valid JSON"

// next returns the next byte that is not space; 0 at the end.
func (r *reader) next() byte {
	for i, c := range r.text {
		if c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			r.text = r.text[i:]
			return c
		}
	}
	r.text = nil
	return 0
}

// take reads a byte.
func (r *reader) take(c byte, what string) error {
	if r.next() != c {
		return r.unlike(what)
	}
	r.text = r.text[1:]
	return nil
}

// unlike is the error of what comes next.
func (r *reader) unlike(what string) error {
	if len(r.text) == 0 {
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf(": it must be %s", what)
}

// value reads a text, a number, true, false or null, and returns it as it is written; "" if there is none.
func (r *reader) value() []byte {
	n := 0
	if r.next() == '"' {
		for n = 1; n < len(r.text) && r.text[n] != '"'; n++ {
			if r.text[n] == '\\' {
				n++
			}
		}
		if n++; n > len(r.text) {
			r.text = nil
			return nil
		}
	} else if n = bytes.IndexAny(r.text, "[]{},: \t\r\n"); n < 0 {
		n = len(r.text)
	}
	raw := r.text[:n]
	r.text = r.text[n:]
	return raw
}

// each reads an object or an array, whose elements do reads.
func (r *reader) each(open, end byte, what string, do func() error) error {
	if err := r.take(open, what); err != nil {
		return err
	}
	for more := r.next() != end; more; {
		if err := do(); err != nil {
			return err
		}
		if more = r.next() != end; more {
			if err := r.take(',', valid); err != nil {
				return err
			}
		}
	}
	return r.take(end, valid)
}

// list returns what reads an array, one element after the other, so that an array of many
// small elements is refused before it takes memory.
func list[T any](name string, into *[]T, read func(*reader, *T) error) func(*reader) error {
	return func(r *reader) error {
		*into = []T{}
		return r.each('[', ']', "an array", func() error {
			if len(*into) == MaxElements {
				return &TooManyError{name}
			}
			var element T
			if err := read(r, &element); err != nil {
				return fmt.Errorf("[%d]%w", len(*into), err)
			}
			*into = append(*into, element)
			return nil
		})
	}
}

// object reads an object.
func object(r *reader, f fields) error {
	return r.each('{', '}', "an object", func() error {
		raw := r.value()
		if len(raw) == 0 {
			return r.unlike(valid)
		}
		name, ok := plain(raw)
		if !ok {
			var escaped string
			if json.Unmarshal(raw, &escaped) != nil {
				return fmt.Errorf(": the name of a field must be a string")
			}
			name = escaped
		}
		if err := r.take(':', valid); err != nil {
			return err
		}
		i := slices.IndexFunc(f, func(f field) bool { return f.name == name })
		if i < 0 {
			return fmt.Errorf(": the field %s is unknown", quote(name))
		}
		if f[i].into == nil {
			return fmt.Errorf(": the field %q comes twice", name)
		}
		if err := f[i].read(r); err != nil {
			return named(name, err)
		}
		f[i].into = nil
		return nil
	})
}

// named returns the error of a field.
func named(name string, err error) error {
	if typed, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf(".%s: it must be %s, and is a JSON %s", name, kindOf(typed.Type), typed.Value)
	}
	if text := err.Error(); text != "" && strings.ContainsRune("[.:", rune(text[0])) {
		return fmt.Errorf(".%s%w", name, err)
	}
	return fmt.Errorf(".%s: %w", name, err)
}

func kindOf(t reflect.Type) string {
	switch name := strings.TrimLeft(t.String(), "*"); {
	case strings.HasPrefix(name, "int"):
		return "a whole number"
	case name == "bool":
		return "true or false"
	}
	return "a string"
}

// read reads a body that is one object and nothing else.
func read(body []byte, f fields) error {
	if !utf8.Valid(body) {
		return errors.New("the body is not UTF-8; a key that is not text is sent as key_b64")
	}
	r := &reader{body}
	if err := object(r, f); errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the body ends early; it must be one JSON object")
	} else if err != nil {
		return trimmed(err)
	}
	if r.next(); len(r.text) > 0 {
		return errors.New("the body has more than one JSON value")
	}
	return nil
}

// trimmed removes the dot before the first field's name.
func trimmed(err error) error {
	if many, ok := errors.AsType[*TooManyError](err); ok {
		return many
	}
	text := strings.TrimPrefix(err.Error(), ".")
	if rest, ok := strings.CutPrefix(text, ": "); ok {
		text = "the body: " + rest
	}
	return errors.New(text)
}

// quote quotes a name that the client sent, cut to a length that can be shown.
func quote(s string) string {
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	return fmt.Sprintf("%q", s)
}

// text is a string whose escapes are all characters. The decoder turns half of a surrogate
// pair into U+FFFD, and two keys would become one.
type text string

func (t *text) UnmarshalJSON(raw []byte) error {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	if halfPair(raw) {
		return errors.New("it has half of a surrogate pair; send bytes that are no text as key_b64")
	}
	*t = text(s)
	return nil
}

// halfPair reports whether a JSON string has an escape of half a surrogate pair.
func halfPair(raw []byte) bool {
	for i := 0; i+1 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++
		if raw[i] != 'u' {
			continue
		}
		switch first := escaped(raw, i+1); {
		case !utf16.IsSurrogate(first):
		case i+6 < len(raw) && raw[i+5] == '\\' && raw[i+6] == 'u' && utf16.DecodeRune(first, escaped(raw, i+7)) != utf8.RuneError:
			i += 6
		default:
			return true
		}
		i += 4
	}
	return false
}

// escaped returns the number of four hexadecimal digits; 0 if there are none.
func escaped(raw []byte, at int) rune {
	if at+4 > len(raw) {
		return 0
	}
	n, _ := strconv.ParseUint(string(raw[at:at+4]), 16, 32)
	return rune(n)
}
