package idempotency

import (
	"bytes"
	"crypto/sha256"
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

// FingerprintOptions say by what a request under a reused key is recognised.
// The zero value: method, path and query as sent, Content-Type,
// Content-Encoding, and the body's bytes.
type FingerprintOptions struct {
	// SortQuery ignores the order of the query's parameters of different names.
	SortQuery bool
	// CanonicalJSON ignores white space, the order of members and the escaping
	// of strings in a JSON body. Numbers count as they are spelled. A body
	// that is not plain JSON counts byte by byte.
	CanonicalJSON bool
	// Multipart compares a multipart body part by part (headers and content),
	// whatever the boundary. A body that cannot be split counts byte by byte.
	Multipart bool
	// Fields, when not empty, are all that counts of a JSON or form body: names
	// of a form's fields or of a JSON object's members, or JSON pointers
	// (beginning with "/"). Bodies of other kinds count byte by byte.
	Fields []string
	// KeyAlone compares nothing: whatever has the key is the same request.
	KeyAlone bool
	// Func makes the fingerprint itself, and nothing above counts. An error
	// refuses the request with 400.
	Func func(r *http.Request, body io.ReadSeeker) (dibs.Fingerprint, error)
}

// validate returns an error that names the field.
func (o *FingerprintOptions) validate() error {
	if slices.Contains(o.Fields, "") {
		return errors.New("idempotency: Options.Fingerprint.Fields: a field has no name")
	}
	if (o.Func != nil || o.KeyAlone) && (o.SortQuery || o.CanonicalJSON || o.Multipart || len(o.Fields) > 0 || o.Func != nil && o.KeyAlone) {
		return errors.New("idempotency: Options.Fingerprint: Func and KeyAlone have no meaning together with other fields")
	}
	return nil
}

// fingerprintBy is the version of what is hashed: another one makes every key
// in use a mismatch.
const fingerprintBy = "dibs http fingerprint 1\x00"

// How a body went into the fingerprint.
const (
	byBytes     = 'b'
	byJSON      = 'j'
	byParts     = 'm'
	byFields    = 'f'
	byFormField = 'u'
	byKey       = 'k'
)

// of returns the request's fingerprint. buf is scratch.
func (o *FingerprintOptions) of(r *http.Request, b *body, buf []byte) (f dibs.Fingerprint, scratch []byte, err error) {
	if o.Func != nil {
		f, err = o.Func(r, b.section())
		return f, buf, err
	}
	buf = append(buf[:0], fingerprintBy...)
	if o.KeyAlone {
		return sha256.Sum256(append(buf, byKey)), buf, nil
	}
	buf = appendCounted(buf, r.Method)
	buf = appendCounted(buf, o.target(r))
	contentType := r.Header["Content-Type"]
	contentEncoding := r.Header["Content-Encoding"]
	how, sum, contentType := o.body(r, b, contentType)
	if how != byBytes {
		contentEncoding = nil // the content is what was compared
	}
	buf = appendLines(buf, contentType)
	buf = appendLines(buf, contentEncoding)
	buf = append(buf, how)
	buf = append(buf, sum[:]...)
	return sha256.Sum256(buf), buf, nil
}

// appendCounted appends s so that nothing that follows can be taken for a part
// of it.
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

// targetOf returns path and query as sent.
func targetOf(r *http.Request) string {
	target := r.RequestURI
	if target == "" {
		target = r.URL.RequestURI() // a request that came by no server
	}
	if !strings.HasPrefix(target, "/") {
		// The absolute form names the same resource.
		if _, rest, ok := strings.Cut(target, "://"); ok {
			i := strings.IndexAny(rest, "/?")
			switch {
			case i < 0:
				target = "/"
			case rest[i] == '?':
				target = "/" + rest[i:]
			default:
				target = rest[i:]
			}
		}
	}
	return target
}

// target returns what counts of path and query.
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

// body returns the digest of what counts of the body, how it was made, and
// what counts of the Content-Type.
func (o *FingerprintOptions) body(r *http.Request, b *body, contentType []string) (how byte, sum [sha256.Size]byte, counts []string) {
	if !o.CanonicalJSON && !o.Multipart && len(o.Fields) == 0 || len(contentType) != 1 {
		return byBytes, b.sum(), contentType
	}
	media, parameters, err := mime.ParseMediaType(contentType[0])
	if err != nil {
		return byBytes, b.sum(), contentType
	}
	isJSON := media == "application/json" || strings.HasSuffix(media, "+json")
	var form []byte
	switch {
	case isJSON && len(o.Fields) > 0:
		how = byFields
		form, err = o.jsonFields(r, b)
	case isJSON && o.CanonicalJSON:
		how = byJSON
		if form, err = contentOf(r, b.section()); err == nil {
			form, err = canonicalJSON(nil, form)
		}
	case media == "application/x-www-form-urlencoded" && len(o.Fields) > 0:
		how = byFormField
		form, err = o.formFields(r, b)
	case strings.HasPrefix(media, "multipart/") && o.Multipart && parameters["boundary"] != "":
		how = byParts
		content := io.Reader(b.section())
		if len(r.Header["Content-Encoding"]) > 0 {
			var whole []byte
			whole, err = contentOf(r, content)
			content = bytes.NewReader(whole)
		}
		if err == nil {
			form, err = multipartForm(content, parameters["boundary"])
		}
		delete(parameters, "boundary")
		contentType = []string{mime.FormatMediaType(media, parameters)}
	default:
		return byBytes, b.sum(), contentType
	}
	if err != nil {
		return byBytes, b.sum(), r.Header["Content-Type"]
	}
	return how, sha256.Sum256(form), contentType
}

// jsonFields returns the chosen parts of a JSON document.
func (o *FingerprintOptions) jsonFields(r *http.Request, b *body) ([]byte, error) {
	document, err := contentOf(r, b.section())
	if err != nil {
		return nil, err
	}
	if _, err := canonicalJSON(nil, document); err != nil {
		return nil, err // not before everybody reads it in the same way
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	var form []byte
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
func (o *FingerprintOptions) formFields(r *http.Request, b *body) ([]byte, error) {
	text, err := contentOf(r, b.section())
	if err != nil {
		return nil, err
	}
	values, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, err
	}
	var form []byte
	for _, field := range o.Fields {
		form = appendLines(form, values[field])
	}
	return form, nil
}

// multipartForm returns digests of the parts of a multipart body, in order.
func multipartForm(r io.Reader, boundary string) ([]byte, error) {
	var form []byte
	parts := multipart.NewReader(r, boundary)
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
