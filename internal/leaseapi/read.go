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

// field is where a value goes: a pointer, or a func(*json.Decoder) error that reads it.
type field struct {
	name string
	into any
}

func (f *field) read(d *json.Decoder) error {
	if read, ok := f.into.(func(*json.Decoder) error); ok {
		return read(d)
	}
	return d.Decode(f.into)
}

// list returns what reads an array, one element after the other, so that an array of many
// small elements is refused before it takes memory.
func list[T any](name string, into *[]T, read func(*json.Decoder, *T) error) func(*json.Decoder) error {
	return func(d *json.Decoder) error {
		if err := expect(d, '[', "an array"); err != nil {
			return err
		}
		*into = []T{}
		for d.More() {
			if len(*into) == MaxElements {
				return &TooManyError{name}
			}
			var element T
			if err := read(d, &element); err != nil {
				return in(fmt.Sprintf("[%d]", len(*into)), err)
			}
			*into = append(*into, element)
		}
		_, err := d.Token()
		return err
	}
}

// expect reads the beginning of an object or an array.
func expect(d *json.Decoder, open json.Delim, what string) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t != open {
		return fmt.Errorf(": it must be %s", what)
	}
	return nil
}

// object reads an object.
func object(d *json.Decoder, f fields) error {
	if err := expect(d, '{', "an object"); err != nil {
		return err
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := t.(string)
		i := slices.IndexFunc(f, func(f field) bool { return f.name == name })
		if i < 0 {
			return fmt.Errorf(": the field %s is unknown", quote(name))
		}
		if f[i].into == nil {
			return fmt.Errorf(": the field %q comes twice", name)
		}
		if err := f[i].read(d); err != nil {
			return named(name, err)
		}
		f[i].into = nil
	}
	_, err := d.Token()
	return err
}

// named returns the error of a field.
func named(name string, err error) error {
	if typed, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf(".%s: it must be %s, and is a JSON %s", name, kindOf(typed), typed.Value)
	}
	return in("."+name, err)
}

// in returns the error of a part of what is read.
func in(part string, err error) error {
	if text := err.Error(); text != "" && strings.ContainsRune("[.:", rune(text[0])) {
		return fmt.Errorf("%s%w", part, err)
	}
	return fmt.Errorf("%s: %w", part, err)
}

func kindOf(e *json.UnmarshalTypeError) string {
	switch t := e.Type.String(); {
	case strings.HasPrefix(t, "int"):
		return "a whole number"
	case t == "bool":
		return "true or false"
	}
	return "a string"
}

// read reads a body that is one object and nothing else.
func read(body []byte, f fields) error {
	if !utf8.Valid(body) {
		return errors.New("the body is not UTF-8; a key that is not text is sent as key_b64")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if err := object(d, f); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("the body ends early; it must be one JSON object")
		}
		return trimmed(err)
	}
	if _, err := d.Token(); err != io.EOF {
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

// octets are bytes in base64. The decoder would take an array of numbers, too.
type octets []byte

func (o *octets) UnmarshalJSON(raw []byte) error {
	if raw[0] == '[' {
		return &json.UnmarshalTypeError{Value: "array", Type: reflect.TypeFor[string]()}
	}
	return json.Unmarshal(raw, (*[]byte)(o))
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
