package mysqlstore

import (
	"maps"
	"slices"
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

// tables are the store's.
var tables = []string{"key", "holder", "waiter", "progress", "record", "meta"}

// namer writes the names of a store's tables into SQL.
type namer struct{ prefix string }

// sql replaces @name with the name of one of the store's tables.
func (n namer) sql(text string) string { return n.within("", text) }

// within is sql with something in front of each name.
func (n namer) within(database, text string) string {
	var b strings.Builder
	b.Grow(len(text) + 32)
	for {
		before, after, found := strings.Cut(text, "@")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = strings.TrimLeft(after, "abcdefghijklmnopqrstuvwxyz")
		if name := after[:len(after)-len(text)]; name == "" {
			b.WriteByte('@') // of a variable or an account
		} else {
			b.WriteString(database + "`" + n.table(name) + "`")
		}
	}
}

func (n namer) table(name string) string { return n.prefix + "_" + name }

// appendKey appends the form in which a key is kept: the length of its namespace in
// one byte, the namespace, and the name. No two keys share one.
func appendKey(b []byte, k dibs.Key) []byte {
	b = append(b, byte(len(k.Namespace)))
	b = append(b, k.Namespace...)
	return append(b, k.Name...)
}

// keyOf returns the form in which a key is kept.
func keyOf(k dibs.Key) string { return string(appendKey(nil, k)) }

// parseKey reads what appendKey wrote; false for what it did not.
func parseKey(k string) (dibs.Key, bool) {
	if len(k) == 0 || len(k) < 2+int(k[0]) {
		return dibs.Key{}, false
	}
	n := 1 + int(k[0])
	return dibs.Key{Namespace: k[1:n], Name: k[n:]}, true
}

// sorted returns the members of a set in their order.
func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
