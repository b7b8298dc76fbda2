package page

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dibs-go/dibs/idempotency"
)

// maxBody is how much of a body the page shows, in bytes.
const maxBody = 16 << 10

// body is what a record answers with. No header but its Content-Type is shown, because others can have
// credentials.
type body struct {
	Type   string `json:"type,omitempty"`
	Text   string `json:"text"`
	Bytes  int    `json:"bytes"`
	Cut    bool   `json:"cut,omitempty"`    // there is more
	Hidden string `json:"hidden,omitempty"` // why there is not text
}

// bodyOf returns the body of an answer; nil for data that is not an answer.
func bodyOf(a *idempotency.Answer, data []byte) *body {
	b, content := &body{}, data
	if a != nil {
		b.Type, content = a.Header.Get("Content-Type"), a.Body
		if coding := a.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
			b.Hidden = "It is compressed."
		}
	}
	b.Bytes = len(content)
	if b.Cut = len(content) > maxBody; b.Cut {
		content = content[:maxBody]
		for range utf8.UTFMax - 1 { // a character that was cut
			if r, n := utf8.DecodeLastRune(content); r == utf8.RuneError && n == 1 {
				content = content[:len(content)-1]
			}
		}
	}
	if b.Hidden == "" && !utf8.Valid(content) {
		b.Hidden = "It is not text."
	}
	if b.Hidden != "" {
		b.Cut = false
		return b
	}
	b.Text = visible(string(content))
	return b
}

// visible returns a text of several lines whose other characters are all visible.
func visible(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) && r != utf8.RuneError {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
