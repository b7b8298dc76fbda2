package sqlitestore

import (
	_ "embed"
	"strings"

	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

var (
	//go:embed schema.sql
	schemaSQL string
	//go:embed statements.sql
	statementsSQL string
)

// statements are the prepared statements of the writing connection, by their names in
// statements.sql.
type statements map[string]*lite.Stmt

// tables is what the names of a file's tables begin with.
type tables string

const (
	ownTables    tables = ""      // the file is the store's own
	sharedTables tables = "dibs_" // it is the application's
)

// sql fills in the names of the tables, before which a statement has an @.
func (t tables) sql(text string) string { return strings.ReplaceAll(text, "@", string(t)) }

// texts returns the statements by their names.
func (t tables) texts() map[string]string {
	texts := map[string]string{}
	for _, part := range strings.Split(t.sql(statementsSQL), "-- name: ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		texts[name] = strings.TrimSpace(text)
	}
	return texts
}

// prepare makes the statements on a connection whose file has the schema.
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
