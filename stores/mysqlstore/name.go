package mysqlstore

import (
	"maps"
	"slices"
	"strings"
)

// tables are the store's.
var tables = []string{"key", "holder", "waiter", "progress", "record", "meta"}

// namer writes the names of a store's tables.
type namer struct {
	prefix   string
	database string // in front of each name, with its dot; may be ""
}

// sql replaces @name with the name of a table of the store.
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
			b = append(b, '@') // it belongs to a variable or an account
		} else {
			b = append(b, n.database+"`"+n.table(name)+"`"...)
		}
	}
}

func (n namer) table(name string) string { return n.prefix + "_" + name }

// sorted returns the keys of a map, sorted.
func sorted[T any](set map[string]T) []string { return slices.Sorted(maps.Keys(set)) }
