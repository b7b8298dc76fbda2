package content

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/url"
)

// maxPairs is how many fields a form may have, as in net/url.
const maxPairs = 10000

// errNoForm: the body is not a form.
var errNoForm = errors.New("the form is malformed")

// formFields calls field with each name and value of a form, in order. It reads one pair at a time,
// and reads it as url.ParseQuery does. It returns ErrTooLarge for more than maxPairs.
func formFields(in *Reader, field func(name, value string)) error {
	pairs := bufio.NewReader(in)
	var pair []byte
	for n := 0; ; {
		part, err := pairs.ReadSlice('&')
		pair = append(pair, part...)
		switch {
		case err == bufio.ErrBufferFull:
			continue // in.Read reserves what pair takes
		case err != nil && err != io.EOF:
			return err
		}
		text := bytes.TrimSuffix(pair, []byte("&"))
		switch n++; {
		case n > maxPairs:
			return ErrTooLarge
		case bytes.IndexByte(text, ';') >= 0:
			return errNoForm
		}
		if len(text) > 0 {
			name, value, _ := bytes.Cut(text, []byte("="))
			name1, err1 := url.QueryUnescape(string(name))
			value1, err2 := url.QueryUnescape(string(value))
			if err1 != nil || err2 != nil {
				return errNoForm
			}
			field(name1, value1)
		}
		if err == io.EOF {
			return nil
		}
		in.done += int64(len(pair))
		pair = pair[:0]
	}
}
