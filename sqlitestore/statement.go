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
	read                    *lite.Stmt
	meta, setMeta           *lite.Stmt

	inUse, inUseOrDone                                  *lite.Stmt
	leases, insertLease, confirmLease                   *lite.Stmt
	extendLease, renewLease, abandonLease, roughenLease *lite.Stmt
	deleteLease, renameLease, endPlain                  *lite.Stmt
	progress, saveProgress                              *lite.Stmt
	renameProgress, deleteProgress                      *lite.Stmt
	frontWaiter, frontLiveWaiter, lastWaiter            *lite.Stmt
	firstEnd, countWaiters                              *lite.Stmt
	findWaiter, insertWaiter, keepWaiter, prolongWaiter *lite.Stmt
	setDormant, setLasts, takePlace                     *lite.Stmt
	press, standAgain, giveUpPlace                      *lite.Stmt
	deleteWaiter, deleteAnswered                        *lite.Stmt
	deleteDead                                          *lite.Stmt
	record, saveRecord, deleteRecord                    *lite.Stmt
	wake, lastWake, forgetWakes                         *lite.Stmt
	endedRecords, deleteRecordByID                      *lite.Stmt
	scanLeases, scanWaiters, settledLease               *lite.Stmt
}

// tables is what the names of a file's tables begin with.
type tables string

const (
	ownTables    tables = ""      // the file is the store's own
	sharedTables tables = "dibs_" // it is the application's
)

// sql fills in the names of the tables, before which a statement has an @.
func (t tables) sql(text string) string { return strings.ReplaceAll(text, "@", string(t)) }

// prepare makes the statements on a connection whose file has the schema.
func (t tables) prepare(c *lite.Conn) (*statements, error) {
	texts := map[string]string{}
	for _, part := range strings.Split(t.sql(statementsSQL), "-- name: ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		texts[strings.TrimSpace(name)] = strings.TrimSpace(text)
	}
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
