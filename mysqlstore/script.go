package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
)

// script is some statements that go to the server together and are carried out in
// their order, up to the first that fails.
//
// What is written into the text are numbers, bytes in hexadecimal and the names of
// tables: it means the same at every sql_mode and with every character set. What may
// be large is a parameter.
type script struct {
	text  []byte
	ends  []int                    // where each statement ends
	args  []driver.NamedValue      // of all
	upTo  []int                    // how many of them the statements up to this one have
	gives []func(r *reading) error // takes a row; nil for a statement that has none
}

// done ends a statement that gives no rows.
func (s *script) done() *script { return s.asks(nil) }

// asks ends a statement that gives rows.
func (s *script) asks(row func(r *reading) error) *script {
	s.ends = append(s.ends, len(s.text))
	s.upTo = append(s.upTo, len(s.args))
	s.gives = append(s.gives, row)
	s.text = append(s.text, ";\n"...)
	return s
}

func (s *script) raw(sql string) *script {
	s.text = append(s.text, sql...)
	return s
}

func (s *script) int(n int64) *script {
	s.text = strconv.AppendInt(s.text, n, 10)
	return s
}

func (s *script) bool(b bool) *script {
	if b {
		return s.raw("1")
	}
	return s.raw("0")
}

func (s *script) bytes(b string) *script {
	s.text = append(s.text, "x'"...)
	for i := range len(b) {
		s.text = append(s.text, hexDigits[b[i]>>4], hexDigits[b[i]&15])
	}
	s.text = append(s.text, '\'')
	return s
}

const hexDigits = "0123456789abcdef"

func (s *script) token(t *dibs.Token) *script {
	s.text = append(s.text, "x'"...)
	if !t.IsZero() {
		s.text = hex.AppendEncode(s.text, t[:])
	}
	s.text = append(s.text, '\'')
	return s
}

func (s *script) fingerprint(f *dibs.Fingerprint) *script {
	s.text = append(s.text, "x'"...)
	if !f.IsZero() {
		s.text = hex.AppendEncode(s.text, f[:])
	}
	s.text = append(s.text, '\'')
	return s
}

func (s *script) data(b []byte) *script {
	s.args = append(s.args, driver.NamedValue{Ordinal: len(s.args) + 1, Value: b})
	return s.raw("?")
}

// keys writes a list of keys.
func (s *script) keys(keys []string) *script {
	for i, k := range keys {
		if i > 0 {
			s.raw(",")
		}
		s.bytes(k)
	}
	return s
}

// run has a session carry a script out, in one round trip.
func (s *script) run(ctx context.Context, c *sql.Conn) error {
	var said error
	err := c.Raw(func(conn any) error {
		if said = s.runOn(ctx, conn); gone(said) {
			return driver.ErrBadConn // the pool makes a new one
		}
		return nil
	})
	if said != nil {
		return said
	}
	return err
}

// gone reports whether an error means that the connection is of no use any more.
func gone(err error) bool {
	if err == nil {
		return false
	}
	_, said := errors.AsType[*mysql.MySQLError](err)
	return !said
}

func (s *script) runOn(ctx context.Context, conn any) error {
	asker, ok := conn.(driver.QueryerContext)
	if !ok {
		return fmt.Errorf("mysqlstore: a connection of the type %T", conn)
	}
	rows, err := asker.QueryContext(ctx, string(s.text[:len(s.text)-1]), s.args)
	if err != nil {
		if errors.Is(err, driver.ErrSkip) {
			return errPacket
		}
		return err
	}
	failed := s.read(rows)
	if err := rows.Close(); failed == nil {
		failed = err
	}
	return failed
}

// errPacket: the script is longer than the server takes.
var errPacket = &mysql.MySQLError{Number: 1153, Message: "a packet bigger than max_allowed_packet"}

// read hands the rows out, also those behind which an error comes.
func (s *script) read(rows driver.Rows) error {
	more, ok := rows.(driver.RowsNextResultSet)
	if !ok {
		return fmt.Errorf("mysqlstore: rows of the type %T", rows)
	}
	n := 0
	var failed error
	for len(rows.Columns()) > 0 {
		for n < len(s.gives) && s.gives[n] == nil {
			n++
		}
		if n == len(s.gives) {
			return errors.New("mysqlstore: the server gave rows that nobody asked for")
		}
		r := reading{row: make([]driver.Value, len(rows.Columns()))}
		for {
			err := rows.Next(r.row)
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			if failed == nil {
				r.at = 0
				if failed = s.gives[n](&r); failed == nil {
					failed = r.err
				}
			}
		}
		n++
		if err := more.NextResultSet(); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	for failed == nil && n < len(s.gives) {
		if s.gives[n] != nil {
			return errors.New("mysqlstore: the server left a question without an answer")
		}
		n++
	}
	return failed
}

// reading reads a row, column by column.
type reading struct {
	row []driver.Value
	at  int
	err error
}

func (r *reading) next() driver.Value {
	if r.at == len(r.row) {
		r.fail("a row of too few columns")
		return nil
	}
	r.at++
	return r.row[r.at-1]
}

func (r *reading) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("mysqlstore: the server answered with %s, column %d", what, r.at)
	}
}

// null reports whether the next column is NULL, and passes it over if so.
func (r *reading) null() bool {
	if r.at < len(r.row) && r.row[r.at] == nil {
		r.at++
		return true
	}
	return false
}

func (r *reading) int() int64 {
	switch v := r.next().(type) {
	case int64:
		return v
	case uint64:
		return int64(v)
	case []byte:
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil {
			r.fail("what is no number")
		}
		return n
	}
	r.fail("what is no number")
	return 0
}

func (r *reading) bool() bool { return r.int() != 0 }

// bytes returns bytes that are good only until the next row is read.
func (r *reading) bytes() []byte {
	switch v := r.next().(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	r.fail("what is no text")
	return nil
}

func (r *reading) string() string { return string(r.bytes()) }

func (r *reading) token() (t dibs.Token) {
	copy(t[:], r.bytes())
	return t
}

func (r *reading) fingerprint() (f dibs.Fingerprint) {
	copy(f[:], r.bytes())
	return f
}
