package content

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"maps"
	"mime/multipart"
	"slices"
	"strings"
)

// AppendCounted appends s with its length, so that what follows cannot be taken for a part of s.
func AppendCounted(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// AppendLines appends all lines of a field, with their number.
func AppendLines(dst []byte, lines []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(lines)))
	for _, line := range lines {
		dst = AppendCounted(dst, line)
	}
	return dst
}

// SortQuery returns a target whose parameters of different names are in the order of their names. A
// query with more than maxPairs parameters stays.
func SortQuery(target string) string {
	path, query, ok := strings.Cut(target, "?")
	if !ok || strings.Count(query, "&") >= maxPairs {
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

// JSONFields returns the digests of the chosen parts of a JSON document: members of the object, or JSON
// pointers. It returns an error if the document has none of them.
func JSONFields(in *Reader, fields []string) (form []byte, err error) {
	all, parts := new(chosen), make([]*chosen, len(fields))
	for i, field := range fields {
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

// FormFields returns the digests of the chosen fields of a form. It returns an error if the form has
// none of them.
func FormFields(in *Reader, fields []string) (form []byte, err error) {
	values := make(map[string]hash.Hash, len(fields))
	found := false
	for _, field := range fields {
		values[field] = sha256.New()
	}
	err = formFields(in, func(name, value string) {
		if h := values[name]; h != nil {
			found = true
			h.Write(AppendCounted(nil, value))
		}
	})
	if err != nil {
		return nil, err
	}
	for _, field := range fields {
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

// Parts returns the digest of the parts of a multipart body, in order.
func Parts(in *Reader, boundary string) (form []byte, err error) {
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
			text = AppendLines(AppendCounted(text, name), part.Header[name])
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
	in *Reader
}

// Write passes on.
func (w doneWriter) Write(p []byte) (int, error) {
	w.in.done = w.in.read
	return w.Writer.Write(p)
}
