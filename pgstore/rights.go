package pgstore

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// grants are the statements that give a user what it needs on each kind of thing.
var grants = map[string]string{
	"schema":   "GRANT USAGE ON SCHEMA %s",
	"table":    "GRANT SELECT, INSERT, UPDATE, DELETE ON %s",
	"sequence": "GRANT USAGE ON SEQUENCE %s",
	"function": "GRANT EXECUTE ON FUNCTION %s",
}

// grant returns the cure of an error about a missing right, if the server says it in English:
// "permission denied for table dibs_key".
func grant(e *pgconn.PgError) (cure string, ok bool) {
	if e.Code != "42501" {
		return "", false
	}
	said, ok := strings.CutPrefix(e.Message, "permission denied for ")
	kind, name, _ := strings.Cut(said, " ")
	how, known := grants[kind]
	if !ok || !known {
		return "", false
	}
	cure = "the store's user needs: " + fmt.Sprintf(how, name) + " TO …"
	if kind == "table" {
		cure += "; to list and check only: GRANT SELECT ON " + name + " TO …"
	}
	return cure + "; " + rightsCure, true
}
