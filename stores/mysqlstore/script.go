package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/store"
)

// script is statements that are sent together. The server carries them out in their order, up to
// the first that fails.
//
// Their text has numbers, bytes in hexadecimal and the names of tables, so it means the same at
// every sql_mode and with every character set. Data that may be large is a parameter.
type script struct {
	names namer
	text  []byte
	args  []driver.NamedValue
	gives []func(r *reading) // each reads the rows of one statement that returns rows
}

// raw writes SQL, with @name for the name of a table.
func (s *script) raw(sql string) *script {
	s.text = s.names.append(s.text, sql)
	return s
}

// done ends a statement that returns no rows.
func (s *script) done() *script {
	s.text = append(s.text, ";\n"...)
	return s
}

// asks ends a statement that returns rows, which row reads.
func (s *script) asks(row func(r *reading)) *script {
	s.gives = append(s.gives, row)
	return s.done()
}

// value writes a value, or what it points to.
func (s *script) value(v any) *script {
	switch v := v.(type) {
	case *int64:
		return s.value(*v)
	case *bool:
		return s.value(*v)
	case *string:
		return s.value(*v)
	case *store.Token:
		return s.value(*v)
	case *store.Fingerprint:
		return s.value(*v)
	case int64:
		s.text = strconv.AppendInt(s.text, v, 10)
	case bool:
		n := byte('0')
		if v {
			n++
		}
		s.text = append(s.text, n)
	case string:
		s.text = append(hex.AppendEncode(append(s.text, "x'"...), []byte(v)), '\'')
	case store.Token:
		if v.IsZero() {
			return s.value("")
		}
		return s.value(string(v[:]))
	case store.Fingerprint:
		if v.IsZero() {
			return s.value("")
		}
		return s.value(string(v[:]))
	case []byte: // it may be large
		if v == nil {
			v = []byte{} // nil is NULL to the server
		}
		s.args = append(s.args, driver.NamedValue{Ordinal: len(s.args) + 1, Value: v})
		return s.raw("?")
	default:
		panic(fmt.Sprintf("mysqlstore: a value of the type %T", v))
	}
	return s
}

// list writes values with commas in between.
func list[T any](s *script, values ...T) *script {
	for i, v := range values {
		if i > 0 {
			s.raw(",")
		}
		s.value(v)
	}
	return s
}

// in writes the condition that the expression before it is one of the values.
func in[T any](s *script, values []T) *script {
	s.raw(" IN (")
	if len(values) == 0 {
		s.raw("NULL")
	}
	return list(s, values...).raw(")")
}

// run sends a script on a session, in one round trip.
func (s *script) run(ctx context.Context, c *sql.Conn) error {
	var said error
	err := c.Raw(func(conn any) error {
		if said = s.runOn(ctx, conn); said != nil && code(said) == 0 {
			return driver.ErrBadConn // the pool replaces the connection
		}
		return nil
	})
	return cmp.Or(said, err)
}

func (s *script) runOn(ctx context.Context, conn any) error {
	asker, ok := conn.(driver.QueryerContext)
	if !ok {
		return fmt.Errorf("mysqlstore: a connection of the type %T", conn)
	}
	rows, err := asker.QueryContext(ctx, string(s.text[:len(s.text)-2]), s.args)
	if err != nil {
		if errors.Is(err, driver.ErrSkip) {
			return errPacket
		}
		return err
	}
	return cmp.Or(s.read(rows), rows.Close())
}

// errPacket: the script is too long for the server.
var errPacket = &mysql.MySQLError{Number: 1153, Message: "a packet bigger than max_allowed_packet"}

// read reads all rows, also rows before an error.
func (s *script) read(rows driver.Rows) error {
	more, ok := rows.(driver.RowsNextResultSet)
	if !ok {
		return fmt.Errorf("mysqlstore: rows of the type %T", rows)
	}
	n, r := 0, reading{}
	for ; len(rows.Columns()) > 0; n++ {
		if n == len(s.gives) {
			return errors.New("mysqlstore: the server returned rows that no statement asked for")
		}
		r.row = make([]driver.Value, len(rows.Columns()))
		for {
			err := rows.Next(r.row)
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			r.at = 0
			s.gives[n](&r)
		}
		if err := more.NextResultSet(); err == io.EOF {
			n++
			break
		} else if err != nil {
			return err
		}
	}
	if r.err == nil && n < len(s.gives) {
		return errors.New("mysqlstore: the server returned too few results")
	}
	return r.err
}

// reading reads a row, column by column.
type reading struct {
	row []driver.Value
	at  int
	err error
}

// next returns the bytes of the next column until the next row is read; nil for NULL.
func (r *reading) next() []byte {
	if r.at == len(r.row) {
		r.err = errors.New("mysqlstore: the server's answer has too few columns")
		return nil
	}
	r.at++
	switch v := r.row[r.at-1].(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	case int64:
		return strconv.AppendInt(nil, v, 10)
	case uint64:
		return strconv.AppendUint(nil, v, 10)
	}
	return nil
}

// scan reads columns.
func (r *reading) scan(to ...any) *reading {
	for _, to := range to {
		v := r.next()
		switch to := to.(type) {
		case *int64:
			*to = r.number(v)
		case *bool:
			*to = r.number(v) != 0
		case *string:
			*to = string(v)
		case *store.Token:
			*to = store.Token{}
			copy(to[:], v)
		case *store.Fingerprint:
			*to = store.Fingerprint{}
			copy(to[:], v)
		case *[]byte:
			*to = slices.Clone(v)
		default:
			panic(fmt.Sprintf("mysqlstore: a column is read into %T", to))
		}
	}
	return r
}

func (r *reading) number(v []byte) int64 {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("mysqlstore: column %d of the server's answer is not a number", r.at)
	}
	return n
}
