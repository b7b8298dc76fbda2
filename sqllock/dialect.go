package sqllock

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Dialect is the database's SQL and its error codes.
type Dialect uint8

const (
	_ Dialect = iota
	// PostgreSQL 14 or later, through pgx, its driver for database/sql, or any other
	// driver whose errors have the method SQLState() string (lib/pq).
	PostgreSQL
	// MySQL 8.0 or later, through go-sql-driver/mysql.
	MySQL
	// MariaDB 10.6 or later, through go-sql-driver/mysql.
	MariaDB
	// SQLite 3.35 or later, through a driver whose errors have the method Code() int
	// (modernc.org/sqlite).
	SQLite
)

// String returns the database's name.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case MySQL:
		return "MySQL"
	case MariaDB:
		return "MariaDB"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("Dialect(%d)", uint8(d))
}

func (d Dialect) mysql() bool { return d == MySQL || d == MariaDB }

func (d Dialect) validate() error {
	switch d {
	case PostgreSQL, MySQL, MariaDB, SQLite:
		return nil
	}
	return fmt.Errorf("sqllock: the dialect is %v; name PostgreSQL, MySQL, MariaDB or SQLite", d)
}

// placeholder returns the n-th parameter of a statement, from 1.
func (d Dialect) placeholder(n int) string {
	if d == PostgreSQL {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}

// table quotes "table" or "schema.table". what names the option in errors.
func (d Dialect) table(what, name string) (string, error) {
	schema, table, ok := strings.Cut(name, ".")
	if !ok {
		return d.identifier(what, name)
	}
	schema, err := d.identifier(what, schema)
	if err != nil {
		return "", err
	}
	if table, err = d.identifier(what, table); err != nil {
		return "", err
	}
	return schema + "." + table, nil
}

// identifier quotes one name, so that it is taken as it is.
func (d Dialect) identifier(what, name string) (string, error) {
	if err := d.validateIdentifier(name); err != nil {
		return "", fmt.Errorf("sqllock: %s is %q: %w", what, name, err)
	}
	quote := "`" // SQLite reads "x" as text if there is no such column
	if d == PostgreSQL {
		quote = `"`
	}
	return quote + strings.ReplaceAll(name, quote, quote+quote) + quote, nil
}

func (d Dialect) validateIdentifier(name string) error {
	switch n := len(name); {
	case n == 0:
		return errors.New("a name must not be empty")
	case d == PostgreSQL && n > 63: // PostgreSQL would cut it
		return errors.New("a name has at most 63 bytes in PostgreSQL")
	case n > 64:
		return errors.New("a name has at most 64 bytes")
	case !utf8.ValidString(name):
		return errors.New("a name must be UTF-8")
	case strings.ContainsRune(name, '.'):
		return errors.New("a name may have one dot, between schema and table")
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("a name must not have control characters")
	case strings.HasSuffix(name, " "): // MySQL refuses or drops it
		return errors.New("a name must not end with a space")
	}
	return nil
}
