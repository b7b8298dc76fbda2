package pgstore

import (
	"strings"

	"github.com/dibs-go/dibs"
)

// validName reports whether a name can be part of an identifier as it is.
func validName(s string, most int) bool {
	for i, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', c == '_', i > 0 && '0' <= c && c <= '9':
		default:
			return false
		}
	}
	return s != "" && len(s) <= most
}

// namer writes the names of a store's tables and functions into SQL.
type namer struct{ schema, prefix string }

// sql replaces @name with the name of one of the store's things, and @@ with the
// prefix. A new index is in its table's schema, and PostgreSQL will not hear
// that again.
func (n namer) sql(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "@")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if rest, twice := strings.CutPrefix(after, "@"); twice {
			b.WriteString(n.prefix)
			text = rest
			continue
		}
		rest := strings.TrimLeft(after, "abcdefghijklmnopqrstuvwxyz_")
		name := after[:len(after)-len(rest)]
		switch text = rest; {
		case name == "":
			b.WriteByte('@')
		case strings.HasSuffix(before, "INDEX "):
			b.WriteString(`"` + n.prefix + "_" + name + `"`)
		default:
			b.WriteString(`"` + n.schema + `"."` + n.prefix + "_" + name + `"`)
		}
	}
}

// appendKey appends the form in which a key is kept: the length of its namespace in
// one byte, the namespace, and the name. No two keys share one.
func appendKey(b []byte, k dibs.Key) []byte {
	b = append(b, byte(len(k.Namespace)))
	b = append(b, k.Namespace...)
	return append(b, k.Name...)
}

// parseKey reads what appendKey wrote; false for what it did not.
func parseKey(b []byte) (dibs.Key, bool) {
	if len(b) == 0 || len(b) < 2+int(b[0]) {
		return dibs.Key{}, false
	}
	n := 1 + int(b[0])
	return dibs.Key{Namespace: string(b[1:n]), Name: string(b[n:])}, true
}
