package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dibs-go/dibs"
)

// FingerprintOptions say how a request under a reused key is recognised. The zero value compares
// method, path and query as sent, Content-Type, Content-Encoding, and the body's bytes. A body that
// cannot be compared as asked is compared byte by byte.
type FingerprintOptions struct {
	// SortQuery ignores the order of the query's parameters of different names.
	SortQuery bool
	// CanonicalJSON ignores white space, the order of members and the escaping of strings in a JSON
	// body. Numbers are compared as they are spelled.
	CanonicalJSON bool
	// Multipart compares a multipart body part by part (headers and content), whatever the
	// boundary.
	Multipart bool
	// Fields, if not empty, are the only parts of a JSON or form body that are compared: names of a
	// form's fields or of a JSON object's members, or JSON pointers (beginning with "/").
	Fields []string
	// KeyAlone compares nothing: every request with the key is the same request. The Logger gets
	// one warning when two requests with a key differ.
	KeyAlone bool
	// Func makes the fingerprint, in place of all fields above. An error refuses the request with
	// 400.
	Func func(r *http.Request, body io.ReadSeeker) (dibs.Fingerprint, error)
}

// validate returns an error that names the field.
func (o *FingerprintOptions) validate() error {
	if slices.Contains(o.Fields, "") {
		return errors.New("idempotency: Options.Fingerprint.Fields: a field has no name")
	}
	compares := o.SortQuery || o.CanonicalJSON || o.Multipart || len(o.Fields) > 0
	if o.Func != nil && (compares || o.KeyAlone) || o.KeyAlone && compares {
		return errors.New("idempotency: Options.Fingerprint: Func and KeyAlone have no meaning together with other fields")
	}
	return nil
}

// fingerprintBy is the version of what is hashed. Another version makes every key in use a
// mismatch.
const fingerprintBy = "dibs http fingerprint 1\x00"

// of returns the request's fingerprint. It returns the error of Func, or of the temporary file that
// has the body.
func (o *FingerprintOptions) of(r *http.Request, b *body) (dibs.Fingerprint, error) {
	if o.Func != nil {
		return o.Func(r, b.reader())
	}
	if o.KeyAlone {
		return sha256.Sum256([]byte(fingerprintBy + "key")), nil
	}
	how, form, contentType, err := o.body(r, b)
	encoding := r.Header["Content-Encoding"]
	var sum [sha256.Size]byte
	switch {
	case how == "bytes" || err != nil:
		how, contentType = "bytes", r.Header["Content-Type"]
		if sum, err = b.sum(); err != nil {
			return dibs.Fingerprint{}, err
		}
	default:
		sum, encoding = sha256.Sum256(form), nil // the content was compared
	}
	text := append(make([]byte, 0, 256), fingerprintBy...)
	text = appendCounted(text, r.Method)
	text = appendCounted(text, o.target(r))
	text = appendLines(text, contentType)
	text = appendLines(text, encoding)
	text = appendCounted(text, how)
	return sha256.Sum256(append(text, sum[:]...)), nil
}

// whole returns a digest of all that the fingerprint leaves out when it compares nothing but the
// key; "" if it compares more.
func (o *FingerprintOptions) whole(r *http.Request, b *body) (string, error) {
	if !o.KeyAlone {
		return "", nil
	}
	sum, err := new(FingerprintOptions).of(r, b)
	return base64.RawURLEncoding.EncodeToString(sum[:scopeBytes]), err
}

// appendCounted appends s with its length, so that what follows cannot be taken for a part of s.
func appendCounted(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendLines(dst []byte, lines []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(lines)))
	for _, line := range lines {
		dst = appendCounted(dst, line)
	}
	return dst
}

// targetOf returns path and query as sent. The absolute form of a target names the same resource as
// its path and query.
func targetOf(r *http.Request) string {
	target := r.RequestURI
	if target == "" {
		target = r.URL.RequestURI() // the request came from no server
	}
	_, rest, absolute := strings.Cut(target, "://")
	if strings.HasPrefix(target, "/") || !absolute {
		return target
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0:
		return "/"
	case rest[i] == '?':
		return "/" + rest[i:]
	}
	return rest[i:]
}

// target returns what is compared of path and query.
func (o *FingerprintOptions) target(r *http.Request) string {
	target := targetOf(r)
	path, query, ok := strings.Cut(target, "?")
	if !o.SortQuery || !ok {
		return target
	}
	parameters := strings.Split(query, "&")
	slices.SortStableFunc(parameters, func(a, b string) int {
		a, _, _ = strings.Cut(a, "=")
		b, _, _ = strings.Cut(b, "=")
		return strings.Compare(a, b)
	})
	return path + "?" + strings.Join(parameters, "&")
}

// body returns what is compared of the body and of the Content-Type, and how. A body that returns
// an error is compared byte by byte.
func (o *FingerprintOptions) body(r *http.Request, b *body) (how string, form []byte, contentType []string, err error) {
	contentType = r.Header["Content-Type"]
	if !o.CanonicalJSON && !o.Multipart && len(o.Fields) == 0 || len(contentType) != 1 {
		return "bytes", nil, contentType, nil
	}
	media, parameters, err := mime.ParseMediaType(contentType[0])
	isJSON := media == "application/json" || strings.HasSuffix(media, "+json")
	boundary := parameters["boundary"]
	switch {
	case err != nil:
		return "bytes", nil, contentType, nil
	case isJSON && len(o.Fields) > 0:
		how = "fields"
	case isJSON && o.CanonicalJSON:
		how = "JSON"
	case media == "application/x-www-form-urlencoded" && len(o.Fields) > 0:
		how = "form"
	case strings.HasPrefix(media, "multipart/") && o.Multipart && boundary != "":
		how = "parts"
		delete(parameters, "boundary")
		contentType = []string{mime.FormatMediaType(media, parameters)}
	default:
		return "bytes", nil, contentType, nil
	}
	if how == "parts" && len(r.Header["Content-Encoding"]) == 0 {
		form, err = multipartForm(b.reader(), boundary) // which may be too long for memory
		return how, form, contentType, err
	}
	content, err := contentOf(r, b.reader())
	if err != nil {
		return how, nil, nil, err
	}
	switch how {
	case "JSON":
		form, err = canonicalJSON(content)
	case "fields":
		form, err = o.jsonFields(content)
	case "form":
		form, err = o.formFields(content)
	case "parts":
		form, err = multipartForm(bytes.NewReader(content), boundary)
	}
	return how, form, contentType, err
}

// jsonFields returns the chosen parts of a JSON document.
func (o *FingerprintOptions) jsonFields(document []byte) (form []byte, err error) {
	if _, err := canonicalJSON(document); err != nil {
		return nil, err
	}
	value, err := decodeJSON(document)
	if err != nil {
		return nil, err
	}
	for _, field := range o.Fields {
		part, ok := pointAt(value, field)
		if !ok {
			form = append(form, 0)
			continue
		}
		text, err := json.Marshal(part) // members sorted, numbers as spelled
		if err != nil {
			return nil, err
		}
		form = appendCounted(append(form, 1), string(text))
	}
	return form, nil
}

// formFields returns the chosen fields of a form.
func (o *FingerprintOptions) formFields(content []byte) (form []byte, err error) {
	values, err := url.ParseQuery(string(content))
	for _, field := range o.Fields {
		form = appendLines(form, values[field])
	}
	return form, err
}

// multipartForm returns digests of the parts of a multipart body, in order.
func multipartForm(content io.Reader, boundary string) (form []byte, err error) {
	parts := multipart.NewReader(content, boundary)
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) && len(form) > 0 {
			return form, nil
		}
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(part.Header)) {
			form = appendCounted(form, name)
			form = appendLines(form, part.Header[name])
		}
		h := sha256.New()
		if _, err := io.Copy(h, part); err != nil {
			return nil, err
		}
		form = h.Sum(append(form, 0))
	}
}
