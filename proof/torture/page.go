package torture

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// pictures is how many keys with violations a page has pictures of.
const pictures = 8

// picture is a key's history, drawn.
type picture struct {
	Key, Page string
}

// WriteHTML writes the report as one page, with pictures of the histories in which
// something is wrong.
func (r *Report) WriteHTML(w io.Writer) error {
	drawn, err := r.draw()
	if err != nil {
		return err
	}
	return page.Execute(w, struct {
		*Report
		Bit, Kinds int
		Pictures   []picture
	}{r, r.Bites(), r.kinds(), drawn})
}

// draw draws the histories of the first keys with violations.
func (r *Report) draw() ([]picture, error) {
	var keys []string
	for _, v := range r.verdict.Violations {
		if v.Key != "" && !slices.Contains(keys, v.Key) && len(keys) < pictures {
			keys = append(keys, v.Key)
		}
	}
	var drawn []picture
	for _, key := range keys {
		var b bytes.Buffer
		if err := r.verdict.Picture(&b, key); err != nil {
			return nil, fmt.Errorf("the history of %q cannot be drawn: %w", key, err)
		}
		drawn = append(drawn, picture{key, b.String()})
	}
	return drawn, nil
}
