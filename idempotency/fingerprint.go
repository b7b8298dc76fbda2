package idempotency

import (
	"errors"
	"io"
	"net/http"

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
	// Func makes the fingerprint itself, and nothing above counts. An error
	// refuses the request with 400.
	Func func(r *http.Request, body io.ReadSeeker) (dibs.Fingerprint, error)
}

// validate returns an error that begins with the field's name.
func (o *FingerprintOptions) validate() error {
	for _, f := range o.Fields {
		if f == "" {
			return errors.New("Fields: a field has no name")
		}
	}
	if o.Func != nil && (o.SortQuery || o.CanonicalJSON || o.Multipart || len(o.Fields) > 0) {
		return errors.New("Func has no meaning together with the other fields")
	}
	return nil
}
