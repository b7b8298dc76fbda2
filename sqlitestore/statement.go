package sqlitestore

import (
	_ "embed"
	"fmt"
	"reflect"
	"strings"

	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

var (
	//go:embed schema.sql
	schemaSQL string
	//go:embed statements.sql
	statementsSQL string
)

// statements are the prepared statements of the writing connection. A field is
// named like the statement in statements.sql.
type statements struct {
	begin, commit, rollback *lite.Stmt
	meta, setMeta           *lite.Stmt

	inUse, inUseOrDone                    *lite.Stmt
	leases, insertLease, deleteLease      *lite.Stmt
	renewLease, saveProgress, endPlain    *lite.Stmt
	tellProgress, told                    *lite.Stmt
	memory, abandon, forget, deleteMemory *lite.Stmt
	setFree, clearFree                    *lite.Stmt
	places, findPlace, lastPlace          *lite.Stmt
	countPlaces, savePlace, setHold       *lite.Stmt
	deletePlace, deleteNumber, hasNumber  *lite.Stmt
	deleteDead, waiters, describePlaces   *lite.Stmt
	record, recordInfo                    *lite.Stmt
	saveRecord, deleteRecord              *lite.Stmt
	wake, lastWake, forgetWakes           *lite.Stmt
	endedRecords, deleteRecordByID        *lite.Stmt
	keys, allKeys                         *lite.Stmt
}

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
func (t tables) prepare(c *lite.Conn) (*statements, error) {
	texts := t.texts()
	st := &statements{}
	fields := reflect.ValueOf(st).Elem()
	pointers := reflect.TypeFor[*lite.Stmt]()
	for field := range fields.Type().Fields() {
		text, ok := texts[field.Name]
		if !ok {
			return nil, fmt.Errorf("statements.sql has no %q", field.Name)
		}
		stmt, err := c.Prepare(text)
		if err != nil {
			return nil, err
		}
		// The field is not exported, so it is set through its address.
		target := reflect.NewAt(pointers, fields.FieldByIndex(field.Index).Addr().UnsafePointer())
		target.Elem().Set(reflect.ValueOf(stmt))
	}
	return st, nil
}
