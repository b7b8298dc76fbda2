package jobs

import (
	"encoding"
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
)

// KeyOf returns a job's key from the tags of its arguments, a struct or a pointer to one:
//
//	type Message struct {
//		Conversation int64 `dibs:"key,conversation"`
//		Text         string
//	}
//
// gives the key "conversation 42". Without a name after the comma, the key has the
// field's name, "Conversation 42". Several tagged fields form one key, in their order. A
// field may be a string, integer, boolean or encoding.TextMarshaler, or a pointer to one.
// If a pointer is nil or no field has a tag, the key is "", which excludes no job.
func KeyOf(args any) (string, error) {
	v := reflect.ValueOf(args)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return "", fmt.Errorf("jobs: a %T has no tags for a key; use a struct, or set a key function", args)
	}
	var parts []string
	for i := range v.NumField() {
		field := v.Type().Field(i)
		tag, ok := field.Tag.Lookup("dibs")
		if !ok {
			continue
		}
		what, name, _ := strings.Cut(tag, ",")
		switch {
		case what != "key":
			return "", fmt.Errorf("jobs: the tag dibs:%q of %T.%s is unknown; use dibs:\"key\" or dibs:\"key,NAME\"", tag, args, field.Name)
		case !field.IsExported():
			return "", fmt.Errorf("jobs: %T.%s is part of the key, so export it", args, field.Name)
		case name == "":
			name = field.Name
		}
		text, ok, err := textOf(v.Field(i))
		if err != nil {
			return "", fmt.Errorf("jobs: %T.%s cannot be part of a key: %w", args, field.Name, err)
		}
		if !ok {
			return "", nil
		}
		parts = append(parts, name+" "+url.PathEscape(text))
	}
	return strings.Join(parts, " "), nil
}

// textOf formats one value. ok is false for a nil pointer.
func textOf(v reflect.Value) (text string, ok bool, err error) {
	for {
		if v.Kind() == reflect.Pointer && v.IsNil() {
			return "", false, nil
		}
		if m, ok := v.Interface().(encoding.TextMarshaler); ok {
			b, err := m.MarshalText()
			return string(b), err == nil, err
		}
		if v.Kind() != reflect.Pointer {
			break
		}
		v = v.Elem()
	}
	switch {
	case v.Kind() == reflect.String:
		return v.String(), true, nil
	case v.CanInt():
		return strconv.FormatInt(v.Int(), 10), true, nil
	case v.CanUint():
		return strconv.FormatUint(v.Uint(), 10), true, nil
	case v.Kind() == reflect.Bool:
		return strconv.FormatBool(v.Bool()), true, nil
	}
	return "", false, fmt.Errorf("a %s has no text; use a string, an integer, a boolean or an encoding.TextMarshaler", v.Type())
}
