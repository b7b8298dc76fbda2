package idempotency

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/content"
	"github.com/dibs-go/dibs/internal/dialect"
)

// FingerprintOptions say how a request under a reused key is recognised. The zero value compares
// method, path and query as sent, Content-Type, Content-Encoding, the fields of OverrideFields, and
// the body's bytes. A body that cannot be compared as asked is compared byte by byte: it is not what
// Content-Type says, it is ambiguous, it is compressed and holds more than 256 KiB, or it has more
// than 1000 parts or 20000 JSON members and elements.
type FingerprintOptions struct {
	// SortQuery ignores the order of the query's parameters of different names.
	SortQuery bool
	// CanonicalJSON ignores white space, the order of members and the escaping of strings in a JSON
	// body. Numbers are compared by value, exactly: 1.0 is 1.
	CanonicalJSON bool
	// Multipart compares a multipart body part by part (headers and content), whatever the
	// boundary.
	Multipart bool
	// Fields, if not empty, are the only parts of a JSON or form body that are compared: names of a
	// form's fields or of a JSON object's members, or JSON pointers (beginning with "/"). A body
	// that has none of them is compared byte by byte.
	Fields []string
	// KeyAlone compares nothing: every request with the key is the same request. The Logger gets
	// one warning when two requests with a key differ.
	KeyAlone bool
	// Func makes the fingerprint, in place of all fields above. An error refuses the request with
	// 400. A zero fingerprint is that of any request. With a KeyRing, it must be zero for all
	// requests with a key or for none.
	Func func(r *http.Request, body io.ReadSeeker) (dibs.Fingerprint, error)
}

// fingerprintBy is the version of what is hashed. Another version makes every key in use a
// mismatch.
const fingerprintBy = "dibs http fingerprint 1\x00"

// of returns the request's fingerprint. It returns the error of Func, or of the temporary file that
// has the body, or errMaxBodyMemory.
func (o *FingerprintOptions) of(r *http.Request, b *body) (dibs.Fingerprint, error) {
	if o.Func != nil {
		return o.Func(r, b.inside())
	}
	if o.KeyAlone {
		return sha256.Sum256([]byte(fingerprintBy + "key")), nil
	}
	how, form, contentType, err := o.body(r, b)
	encoding := r.Header["Content-Encoding"]
	var sum [sha256.Size]byte
	switch {
	case err == errMaxBodyMemory: // and not compared in another way than the first request
		return dibs.Fingerprint{}, err
	case how == "bytes" || err != nil:
		how, contentType = "bytes", r.Header["Content-Type"]
		if sum, err = b.sum(); err != nil {
			return dibs.Fingerprint{}, err
		}
	default:
		sum, encoding = sha256.Sum256(form), nil // the content was compared
	}
	text := append(make([]byte, 0, 256), fingerprintBy...)
	text = content.AppendCounted(text, r.Method)
	text = content.AppendCounted(text, o.target(r))
	text = content.AppendLines(text, contentType)
	text = content.AppendLines(text, encoding)
	text = content.AppendCounted(text, how)
	text = appendFieldsOf(text, r.Header, isOverride)
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

// target returns what is compared of path and query.
func (o *FingerprintOptions) target(r *http.Request) string {
	if !o.SortQuery {
		return dialect.TargetOf(r)
	}
	return content.SortQuery(dialect.TargetOf(r))
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
	in, err := content.Open(r.Header["Content-Encoding"], b.inside())
	if err != nil {
		return how, nil, nil, err
	}
	switch how {
	case "JSON":
		form, err = content.CanonicalJSON(in)
	case "fields":
		form, err = content.JSONFields(in, o.Fields)
	case "form":
		form, err = content.FormFields(in, o.Fields)
	case "parts":
		form, err = content.Parts(in, boundary)
	}
	return how, form, contentType, cmp.Or(in.Err(), err)
}
