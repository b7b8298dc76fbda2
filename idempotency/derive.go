package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// A KeyFunc derives the key of a request; see Options.Key.
type KeyFunc = func(r *http.Request, body io.ReadSeeker) (string, error)

// KeyHeader derives the key from a header that is not an Idempotency-Key: a
// webhook's event id, say. The value counts as it stands; a request without
// the header has no key, and one with several is refused.
func KeyHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request, _ io.ReadSeeker) (string, error) {
		switch lines := r.Header[name]; len(lines) {
		case 0:
			return "", nil
		case 1:
			if lines[0] == "" {
				return "", errEmptyKey
			}
			return lines[0], nil
		}
		return "", errSeveral
	}
}

// KeyJSON derives the key from a member of a JSON body: the name of a member of
// the object, or a JSON pointer, which begins with "/". A string counts as it
// is, a number as it is spelled; of a list, all its elements count, in order. If the
// body is an array, that member of each of its elements counts. Within a value, a "," is
// written "%2C" and a "%" is written "%25". A request whose body
// is not JSON, or does not have the member, has no key; anything else there is
// refused. The body may be compressed with gzip or deflate.
func KeyJSON(field string) KeyFunc {
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		content, err := contentOf(r, body)
		if err != nil {
			return "", nil
		}
		d := json.NewDecoder(bytes.NewReader(content))
		d.UseNumber()
		var document any
		if d.Decode(&document) != nil {
			return "", nil
		}
		if _, err := d.Token(); err != io.EOF {
			return "", nil // several documents: the first one's member is not the key of all
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
			if values, err = appendScalars(values, value); err != nil {
				return "", err
			}
		}
		if len(values) == 1 {
			return separators.Replace(values[0]), nil // not what two others make
		}
		return joinKeys(values), nil
	}
}

// appendScalars appends a string or a number, or all those of a list.
func appendScalars(values []string, value any) ([]string, error) {
	switch v := value.(type) {
	case string:
		if v == "" {
			return nil, errEmptyKey
		}
		return append(values, v), nil
	case json.Number:
		return append(values, v.String()), nil
	case []any:
		for _, element := range v {
			var err error
			if _, nested := element.([]any); nested {
				return nil, errKeyFailed
			}
			if values, err = appendScalars(values, element); err != nil {
				return nil, err
			}
		}
		return values, nil
	}
	return nil, errKeyFailed
}

// KeyForm derives the key from a field of a form (application/x-www-form-urlencoded). A
// request that is no form, or does not have the field, has no key; one that has it more
// than once, or empty, is refused. The body may be compressed with gzip or deflate.
func KeyForm(field string) KeyFunc {
	return func(r *http.Request, body io.ReadSeeker) (string, error) {
		media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil || media != "application/x-www-form-urlencoded" {
			return "", nil
		}
		content, err := contentOf(r, body)
		if err != nil {
			return "", nil
		}
		form, err := url.ParseQuery(string(content))
		if err != nil {
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

// KeyOf derives a key of several parts. A request that lacks one of them has no key.
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

// KeyFirst derives the key in the first way in which the request has one.
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

// derive asks for a part of the key. Each reads the body from its beginning.
func derive(part KeyFunc, r *http.Request, body io.ReadSeeker) (string, error) {
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	return part(r, body)
}

// joinKeys makes one key of several values, so that no other values have the same. One
// that would be too long is replaced by its digest.
func joinKeys(values []string) string {
	if len(values) == 1 {
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

// WebhookOptions are for the endpoint of somebody else's webhooks. Change them as needed.
//
//   - The key is the event's id: the header Webhook-Id, Svix-Id, X-GitHub-Delivery,
//     X-Shopify-Webhook-Id or X-Event-Id, else the member id or event_id of a JSON body,
//     else the field id of a form. It counts for one path.
//   - Senders are not told apart (ScopeNone): what they sign differs from one attempt to
//     the next.
//   - A retry may differ in all but the id.
//   - Only answers of 2xx are kept, so that a retry after any other runs again; and so
//     nobody who sends events with a false signature keeps the true one from running.
//   - A duplicate waits for the first for up to 5 s.
func WebhookOptions() *Options {
	return &Options{
		Key: KeyFirst(
			KeyHeader("Webhook-Id"), KeyHeader("Svix-Id"), KeyHeader("X-GitHub-Delivery"),
			KeyHeader("X-Shopify-Webhook-Id"), KeyHeader("X-Event-Id"),
			KeyJSON("id"), KeyJSON("event_id"), KeyForm("id"),
		),
		Scope:       []ScopePart{ScopeNone},
		Fingerprint: FingerprintOptions{KeyAlone: true},
		Keep:        []string{"2xx"},
		Wait:        5 * time.Second,
	}
}
