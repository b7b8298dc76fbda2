package idempotency

import (
	"fmt"
	"io"
	"net/http"

	"github.com/dibs-go/dibs/internal/content"
)

// A KeyFunc derives the key of a request; see Options.Key.
type KeyFunc = func(r *http.Request, body io.ReadSeeker) (string, error)

// KeyHeader derives the key from another header than Idempotency-Key, such as a webhook's event id.
// The value counts as it stands. A request without the header has no key; a request with several
// such headers is refused. It panics if no key can be in the header (KeyFieldFault).
func KeyHeader(name string) KeyFunc {
	if fault := KeyFieldFault(name); fault != "" {
		panic(fmt.Sprintf("idempotency: KeyHeader: %q %s", name, fault))
	}
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request, _ io.ReadSeeker) (string, error) {
		lines := r.Header[name]
		switch {
		case len(lines) == 0:
			return "", nil
		case len(lines) > 1:
			return "", errSeveral
		case lines[0] == "":
			return "", content.ErrEmptyKey
		}
		return lines[0], nil
	}
}

// KeyJSON derives the key from a member of a JSON body. field is the name of a member of the
// object, or a JSON pointer, which begins with "/". A string counts as it is, and a number as it is
// spelled. Of a list, all elements count, in order. If the body is an array, that member of each
// element counts. Within a value, "," is written "%2C" and "%" is written "%25". A request has no
// key if its body is not JSON or does not have the member. Any other value, a member that is there
// twice, and more than 10000 values are refused. The body may be compressed with gzip or deflate. If
// it then holds more than 256 KiB, or the objects and arrays on the way to the member have more than
// 20000 members, the request is refused with 413.
func KeyJSON(field string) KeyFunc {
	path := content.PathOf(field)
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		return path.Key(r.Header["Content-Encoding"], body)
	}
}

// KeyForm derives the key from a field of a form (application/x-www-form-urlencoded). A request has
// no key if its body is not a form or does not have the field. A field that is empty, or there more
// than once, is refused, and so are several Content-Type lines. The body may be compressed with gzip
// or deflate. If it then holds more than 256 KiB, or the form has more than 10000 fields, the request
// is refused with 413.
func KeyForm(field string) KeyFunc {
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		return content.FormKey(r.Header["Content-Type"], r.Header["Content-Encoding"], body, field)
	}
}

// KeyOf derives a key from several parts. A request that lacks a part has no key.
// It panics if a part is nil.
func KeyOf(parts ...KeyFunc) KeyFunc {
	needAll("KeyOf", parts)
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		values := make([]string, len(parts))
		for i, part := range parts {
			var err error
			if values[i], err = derive(part, r, body); err != nil || values[i] == "" {
				return "", err
			}
		}
		return content.Join(values), nil
	}
}

// KeyFirst derives the key by the first function that finds one. It panics if one is nil.
func KeyFirst(ways ...KeyFunc) KeyFunc {
	needAll("KeyFirst", ways)
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		for _, way := range ways {
			if key, err := derive(way, r, body); err != nil || key != "" {
				return key, err
			}
		}
		return "", nil
	}
}

// needAll panics before a request is served if a function of the call is nil.
func needAll(call string, functions []KeyFunc) {
	for i, f := range functions {
		if f == nil {
			panic(fmt.Sprintf("idempotency: argument %d of %s is nil; it must be a function that finds a key", i+1, call))
		}
	}
}

// derive derives a part of the key. Each part reads the body from its beginning.
func derive(part KeyFunc, r *http.Request, body io.ReadSeeker) (string, error) {
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	return part(r, body)
}
