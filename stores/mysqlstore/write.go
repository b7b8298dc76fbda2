package mysqlstore

import (
	"strings"

	"github.com/dibs-go/dibs/store/engine"
)

// row writes the values of one row.
func (s *script) row(values ...any) *script { return list(s.raw("("), values...).raw(")") }

// upsert writes rows, each of which may be there already.
func upsert(s *script, table, columns string, rows [][]any) {
	if len(rows) == 0 {
		return
	}
	s.raw("INSERT INTO @" + table + " (" + columns + ") VALUES ")
	for i, row := range rows {
		if i > 0 {
			s.raw(",")
		}
		s.row(row...)
	}
	s.raw(" ON DUPLICATE KEY UPDATE ")
	for i, c := range strings.Split(columns, ",") {
		if i > 0 {
			s.raw(",")
		}
		s.raw(c + "=VALUES(" + c + ")")
	}
	s.done()
}

// write writes what is different from what was loaded.
func write(s *script, c *engine.Changes) {
	remove := func(table string, rows [][]any, columns ...string) {
		for _, row := range rows {
			s.raw("DELETE FROM @" + table + " WHERE k=").value(row[0])
			for i, column := range columns {
				s.raw(" AND " + column + "=").value(row[i+1])
			}
			s.done()
		}
	}
	upsert(s, "key", keyColumns, c.Rows)
	remove("holder", c.NoLeases, "token", "abandoned")
	upsert(s, "holder", holderColumns, c.Leases)
	remove("waiter", c.NoNumbers, "seq")
	remove("waiter", c.NoPlaces, "seq", "token")
	upsert(s, "waiter", waiterColumns, c.Places)
	for _, step := range c.Steps {
		switch step.Does {
		case engine.WriteRecord:
			s.raw("INSERT INTO @record (k,data) VALUES ").row(step.K, step.Data)
			s.raw(" ON DUPLICATE KEY UPDATE data=VALUES(data)").done()
		case engine.EraseRecord:
			s.raw("DELETE FROM @record WHERE k=").value(step.K).done()
		case engine.WriteProgress:
			s.raw("INSERT INTO @progress (k,fence,data) VALUES ").row(step.K, step.Fence, step.Data)
			s.raw(" ON DUPLICATE KEY UPDATE data=VALUES(data)").done()
		case engine.DropProgress:
			s.raw("DELETE FROM @progress WHERE k=").value(step.K).raw(" AND fence=").value(step.Fence).done()
		case engine.ReadRecord:
			s.raw("SELECT data FROM @record WHERE k=").value(step.K).asks(func(r *reading) { r.scan(step.To) })
		case engine.ReadProgress:
			s.raw("SELECT data FROM @progress WHERE k=").value(step.K).raw(" AND fence=").value(step.Fence)
			s.asks(func(r *reading) { r.scan(step.To) })
		case engine.ReadSize:
			s.raw("SELECT LENGTH(data) FROM @record WHERE k=").value(step.K).asks(func(r *reading) {
				var n int64
				r.scan(&n)
				*step.Size = int(n)
			})
		}
	}
}
