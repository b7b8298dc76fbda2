package sqlitestore

import (
	_ "embed"
	"strings"

	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

var (
	//go:embed schema.sql
	schemaSQL string
	//go:embed statements.sql
	statementsSQL string
)

// statements are the prepared statements of the writing connection, by name.
type statements map[string]*lite.Stmt

// tables is the prefix of the store's tables.
type tables string

const (
	ownTables    tables = ""      // in the store's own file
	sharedTables tables = "dibs_" // in an application's file
)

// sql replaces the @ before table names with the prefix.
func (t tables) sql(text string) string { return strings.ReplaceAll(text, "@", string(t)) }

// texts returns the statements by name.
func (t tables) texts() map[string]string {
	texts := map[string]string{}
	for _, part := range strings.Split(t.sql(statementsSQL), "-- name: ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		texts[name] = strings.TrimSpace(text)
	}
	return texts
}

// prepare prepares the statements. The file must have the schema.
func (t tables) prepare(c *lite.Conn) (statements, error) {
	all := statements{}
	for name, text := range t.texts() {
		st, err := c.Prepare(text)
		if err != nil {
			return nil, err
		}
		all[name] = st
	}
	return all, nil
}
