package pgstore

import "strings"

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
