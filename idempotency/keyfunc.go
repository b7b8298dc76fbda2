package idempotency

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// A KeyFunc derives the key of a request; see Options.Key.
type KeyFunc = func(r *http.Request, body io.ReadSeeker) (string, error)

// KeyHeader derives the key from another header than Idempotency-Key, such as a webhook's event id.
// The value counts as it stands. A request without the header has no key; a request with several
// such headers is refused.
func KeyHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request, _ io.ReadSeeker) (string, error) {
		lines := r.Header[name]
		switch {
		case len(lines) == 0:
			return "", nil
		case len(lines) > 1:
			return "", errSeveral
		case lines[0] == "":
			return "", errEmptyKey
		}
		return lines[0], nil
	}
}

// KeyJSON derives the key from a member of a JSON body. field is the name of a member of the
// object, or a JSON pointer, which begins with "/". A string counts as it is, and a number as it is
// spelled. Of a list, all elements count, in order. If the body is an array, that member of each
// element counts. Within a value, "," is written "%2C" and "%" is written "%25". A request has no
// key if its body is not JSON or does not have the member. Any other value is refused. The body may
// be compressed with gzip or deflate.
func KeyJSON(field string) KeyFunc {
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		content, err := contentOf(r, body)
		if err != nil {
			return "", nil
		}
		document, err := decodeJSON(content)
		if err != nil {
			return "", nil
		}
		elements := []any{document}
		if list, ok := document.([]any); ok && !strings.HasPrefix(field, "/") {
			elements = list
		}
		var values []string
		for _, element := range elements {
			value, ok := pointAt(element, field)
			if !ok {
				return "", nil
			}
			scalars, isList := value.([]any)
			if !isList {
				scalars = []any{value}
			}
			for _, scalar := range scalars {
				switch v := scalar.(type) {
				case string:
					if v == "" {
						return "", errEmptyKey
					}
					values = append(values, v)
				case json.Number:
					values = append(values, v.String())
				default:
					return "", errKeyFailed
				}
			}
		}
		if len(values) == 1 {
			return separators.Replace(values[0]), nil // which two values cannot make
		}
		return joinKeys(values), nil
	}
}

// KeyForm derives the key from a field of a form (application/x-www-form-urlencoded). A request has
// no key if its body is not a form or does not have the field. A field that is empty, or there more
// than once, is refused. The body may be compressed with gzip or deflate.
func KeyForm(field string) KeyFunc {
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil || media != "application/x-www-form-urlencoded" {
			return "", nil
		}
		content, err := contentOf(r, body)
		form, malformed := url.ParseQuery(string(content))
		if err != nil || malformed != nil {
			return "", nil
		}
		switch values := form[field]; {
		case len(values) == 0:
			return "", nil
		case len(values) > 1:
			return "", errKeyFailed
		case values[0] == "":
			return "", errEmptyKey
		default:
			return values[0], nil
		}
	}
}

// KeyOf derives a key from several parts. A request that lacks a part has no key.
func KeyOf(parts ...KeyFunc) KeyFunc {
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		values := make([]string, len(parts))
		for i, part := range parts {
			var err error
			if values[i], err = derive(part, r, body); err != nil || values[i] == "" {
				return "", err
			}
		}
		return joinKeys(values), nil
	}
}

// KeyFirst derives the key by the first function that finds one.
func KeyFirst(ways ...KeyFunc) KeyFunc {
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		for _, way := range ways {
			if key, err := derive(way, r, body); err != nil || key != "" {
				return key, err
			}
		}
		return "", nil
	}
}

// derive derives a part of the key. Each part reads the body from its beginning.
func derive(part KeyFunc, r *http.Request, body io.ReadSeeker) (string, error) {
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	return part(r, body)
}

// joinKeys makes one key of several values. Other values make another key. A key that would be too
// long is replaced by its digest.
func joinKeys(values []string) string {
	switch len(values) {
	case 0:
		return ""
	case 1:
		return values[0]
	}
	escaped := make([]string, len(values))
	for i, value := range values {
		escaped[i] = separators.Replace(value)
	}
	key := strings.Join(escaped, ",")
	if len(key) > MaxKey {
		sum := sha256.Sum256([]byte(key))
		key = "sha256:" + base64.RawURLEncoding.EncodeToString(sum[:])
	}
	return key
}

var separators = strings.NewReplacer("%", "%25", ",", "%2C")
