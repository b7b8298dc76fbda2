//go:build unix

package servertest

import "strings"

const (
	// fieldEnd and rowEnd separate psql's output. No test has them in a value.
	fieldEnd = "\x1f"
	rowEnd   = "\x1e"
)

// psql is PostgreSQL's command line client.
type psql struct{ client }

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
