//go:build unix

package servertest

import "strings"

const (
	// fieldEnd and rowEnd divide what psql prints. No test has them in a value.
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
	// Whatever divides the rows, a newline is behind the last, and without rows
	// there is nothing at all.
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
