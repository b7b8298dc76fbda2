package pgstore

import "strings"

// namer writes the names of a store's tables and functions.
type namer struct{ schema, prefix string }

// sql replaces @name with the name of a table or function of the store, and @@ with the prefix.
// The name of a new index has no schema, because PostgreSQL refuses one there.
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
