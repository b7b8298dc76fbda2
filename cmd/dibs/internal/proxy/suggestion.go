package proxy

import (
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/internal/nearest"
)

// maxEdits bounds the edits between a misspelt name and the suggested one.
const maxEdits = 2

// suggestion is the end of a message about an unknown name: the setting with the most similar
// name; "" if none is similar.
func suggestion(unknown string, all []setting) string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.name
	}
	name, n := nearest.Name(unknown, names, plainName)
	if n > maxEdits || 2*n >= len(unknown) {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", name)
}

// plainName makes handler_timeout and handlerTimeout the same name as handler-timeout.
func plainName(s string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s))
}
