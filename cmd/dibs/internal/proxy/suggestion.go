package proxy

import (
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/internal/nearest"
)

// suggestion is the end of a message about an unknown name: the setting with the most similar
// name; "" if none is similar.
func suggestion(unknown string, all []setting) string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.name
	}
	name := nearest.Similar(unknown, names, plainName)
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", name)
}

// plainName makes handler_timeout and handlerTimeout the same name as handler-timeout.
func plainName(s string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s))
}
