package idempotency

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"

	"github.com/dibs-go/dibs"
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
	text = appendCounted(text, r.Method)
	text = appendCounted(text, o.target(r))
	text = appendLines(text, contentType)
	text = appendLines(text, encoding)
	text = appendCounted(text, how)
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
	if strings.Count(query, "&") >= maxPairs {
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
	in, err := contentOf(r, b.inside())
	if err != nil {
		return how, nil, nil, err
	}
	switch how {
	case "JSON":
		form, err = canonicalJSON(in, nil)
	case "fields":
		form, err = o.jsonFields(in)
	case "form":
		form, err = o.formFields(in)
	case "parts":
		form, err = multipartForm(in, boundary)
	}
	return how, form, contentType, cmp.Or(in.err, err)
}

// jsonFields returns the digests of the chosen parts of a JSON document.
func (o *FingerprintOptions) jsonFields(in *contents) (form []byte, err error) {
	all, parts := new(chosen), make([]*chosen, len(o.Fields))
	for i, field := range o.Fields {
		parts[i] = all.add(pathOf(field))
	}
	if _, err := canonicalJSON(in, all); err != nil {
		return nil, err
	}
	found := false
	for _, part := range parts {
		form = append(append(form, flag(part.found)), part.digest[:]...)
		found = found || part.found
	}
	return form, errUnless(found)
}

// formFields returns the digests of the chosen fields of a form.
func (o *FingerprintOptions) formFields(in *contents) (form []byte, err error) {
	values := make(map[string]hash.Hash, len(o.Fields))
	found := false
	for _, field := range o.Fields {
		values[field] = sha256.New()
	}
	err = formFields(in, func(name, value string) {
		if h := values[name]; h != nil {
			found = true
			h.Write(appendCounted(nil, value))
		}
	})
	if err != nil {
		return nil, err
	}
	for _, field := range o.Fields {
		form = values[field].Sum(form)
	}
	return form, errUnless(found)
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// errUnless returns an error if no chosen field is there: then all that is there is compared,
// because otherwise every such request would be the same.
func errUnless(found bool) error {
	if found {
		return nil
	}
	return errNoPart
}

// maxParts is how many parts a multipart body may have to be compared part by part, as in net/http.
const maxParts = 1000

// errParts: the multipart body has too many parts.
var errParts = errors.New("the body has too many parts")

// multipartForm returns the digest of the parts of a multipart body, in order.
func multipartForm(in *contents, boundary string) (form []byte, err error) {
	parts, all, own := multipart.NewReader(in, boundary), sha256.New(), sha256.New()
	buffer := make([]byte, 4<<10)
	for n := 0; ; n++ {
		part, err := parts.NextRawPart()
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return all.Sum(nil), nil
		case err != nil:
			return nil, err
		case n == maxParts:
			return nil, errParts
		}
		var text []byte
		for _, name := range slices.Sorted(maps.Keys(part.Header)) {
			text = appendLines(appendCounted(text, name), part.Header[name])
		}
		all.Write(append(text, 0))
		own.Reset()
		if _, err := io.CopyBuffer(doneWriter{own, in}, part, buffer); err != nil {
			return nil, err
		}
		all.Write(own.Sum(nil))
	}
}

// A doneWriter gets what a parser has read and does not hold any more.
type doneWriter struct {
	io.Writer
	in *contents
}

// Write passes on.
func (w doneWriter) Write(p []byte) (int, error) {
	w.in.done = w.in.read
	return w.Writer.Write(p)
}
