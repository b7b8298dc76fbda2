package proxy

import (
	"fmt"
	"strings"
)

// maxEdits bounds the edits between a misspelt name and the suggested one.
const maxEdits = 2

// suggestion is the end of a message about an unknown name: the setting with the most similar
// name; "" if none is similar.
func suggestion(unknown string, all []setting) string {
	best, least := "", min(maxEdits+1, (len(unknown)+1)/2)
	for _, s := range all {
		if n := edits(plainName(unknown), plainName(s.name)); n < least {
			best, least = s.name, n
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// plainName makes handler_timeout and handlerTimeout the same name as handler-timeout.
func plainName(s string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s))
}

// edits counts the letters to insert, delete or replace to make one text the other.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
