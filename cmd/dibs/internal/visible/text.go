// Package visible shows texts of others', such as keys, to people: all of them, and
// safely.
package visible

import (
	"strconv"
	"strings"
	"unicode"
)

// Text returns text that stands for nothing else: as it is, or in quotes when
// something in it would not be seen, or could be taken for an escape.
func Text(s string) string {
	clean := s != "" && strings.TrimSpace(s) == s && !strings.ContainsAny(s, `"\`) && !strings.Contains(s, "  ")
	for _, r := range s {
		clean = clean && unicode.IsPrint(r) && r != unicode.ReplacementChar
	}
	if clean {
		return s
	}
	return strconv.Quote(s)
}
