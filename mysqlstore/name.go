package mysqlstore

import (
	"maps"
	"slices"
	"strings"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
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
type namer struct {
	prefix   string
	database string // in front of each name, with its dot; "" for none
}

// sql replaces @name with the name of one of the store's tables.
func (n namer) sql(text string) string { return string(n.append(nil, text)) }

func (n namer) append(b []byte, text string) []byte {
	for {
		before, after, found := strings.Cut(text, "@")
		b = append(b, before...)
		if !found {
			return b
		}
		text = strings.TrimLeft(after, "abcdefghijklmnopqrstuvwxyz")
		if name := after[:len(after)-len(text)]; name == "" {
			b = append(b, '@') // of a variable or an account
		} else {
			b = append(b, n.database+"`"+n.table(name)+"`"...)
		}
	}
}

func (n namer) table(name string) string { return n.prefix + "_" + name }

// keyOf returns the form in which a key is kept.
func keyOf(k dibs.Key) string { return string(backend.AppendKey(nil, k)) }

// sorted returns the members of a set in their order.
func sorted[T any](set map[string]T) []string { return slices.Sorted(maps.Keys(set)) }
