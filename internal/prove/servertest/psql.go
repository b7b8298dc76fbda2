//go:build unix

package servertest

import (
	"path/filepath"
	"strings"
)

const (
	// fieldEnd and rowEnd separate psql's output. No test has them in a value.
	fieldEnd = "\x1f"
	rowEnd   = "\x1e"
)

// psql is PostgreSQL's command line client.
type psql struct{ client }

// newPsql returns a client of the superuser for PostgreSQL's protocol at host and port. bin is the
// folder of PostgreSQL's programs.
func newPsql(bin, host string, at *port, password string) *psql {
	return &psql{client{
		path: filepath.Join(bin, "psql"),
		args: []string{"-X", "-q", "-w", "-A", "-t", "-F", fieldEnd, "-R", rowEnd,
			"-v", "ON_ERROR_STOP=1", "-v", "SHOW_ALL_RESULTS=off", "-P", "null=NULL",
			"-h", host, "-p", at.String(), "-U", "postgres"},
		env: []string{"PGPASSWORD=" + password, "PGCONNECT_TIMEOUT=60", "PGSSLMODE=disable"},
	}}
}

// query returns the rows of the last statement.
func (c *psql) query(database, sql string) ([][]string, error) {
	out, err := c.run("-d", database, "-c", sql)
	if err != nil {
		return nil, err
	}
	// A newline follows the last row. Without rows there is no output.
	out, some := strings.CutSuffix(out, "\n")
	if !some {
		return nil, nil
	}
	var rows [][]string
	for row := range strings.SplitSeq(out, rowEnd) {
		rows = append(rows, strings.Split(row, fieldEnd))
	}
	return rows, nil
}
