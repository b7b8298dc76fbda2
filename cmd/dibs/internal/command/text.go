package command

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// unescaper takes back what strconv.Quote escapes only because of its quotes.
var unescaper = strings.NewReplacer(`\"`, `"`, `\\`, `\`)

// quote returns a text for use in a sentence. Characters that would move a terminal's cursor
// or change the direction of the text are escaped.
func quote(s string) string {
	q := strconv.Quote(s)
	return unescaper.Replace(q[1 : len(q)-1])
}

// cell returns a text for a cell of a table, so that no two texts look alike: in quotes if a
// character in it is invisible or could be taken for an escape.
func cell(s string) string {
	clean := s != "" && strings.TrimSpace(s) == s && !strings.ContainsAny(s, `"\`) && !strings.Contains(s, "  ")
	for _, r := range s {
		clean = clean && unicode.IsPrint(r) && r != unicode.ReplacementChar
	}
	if clean {
		return s
	}
	return strconv.Quote(s)
}

// span returns a duration for people.
func span(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// maxNamed is how many keys a question names.
const maxNamed = 5

// several names keys in a question.
func several(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}
