package pgstore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs"
)

// encode appends a value in PostgreSQL's binary form. null says that it is NULL, which nil
// is. Values may be pointers to what they are.
func encode(b []byte, v any) (to []byte, oid uint32, null bool) {
	switch v := v.(type) {
	case int64:
		return binary.BigEndian.AppendUint64(b, uint64(v)), pgtype.Int8OID, false
	case *int64:
		return binary.BigEndian.AppendUint64(b, uint64(*v)), pgtype.Int8OID, false
	case bool:
		if v {
			return append(b, 1), pgtype.BoolOID, false
		}
		return append(b, 0), pgtype.BoolOID, false
	case *bool:
		return encode(b, *v)
	case string:
		return append(b, v...), pgtype.ByteaOID, false
	case *string:
		return append(b, *v...), pgtype.ByteaOID, false
	case []byte:
		return append(b, v...), pgtype.ByteaOID, v == nil
	case dibs.Token:
		return encode(b, &v)
	case *dibs.Token:
		if !v.IsZero() {
			b = append(b, v[:]...)
		}
		return b, pgtype.ByteaOID, false
	case *dibs.Fingerprint:
		if !v.IsZero() {
			b = append(b, v[:]...)
		}
		return b, pgtype.ByteaOID, false
	}
	panic(fmt.Sprintf("pgstore: a value of the type %T", v))
}

// values encodes parameters.
func values(of ...any) [][]byte {
	params := make([][]byte, len(of))
	for i, v := range of {
		params[i], _, _ = encode([]byte{}, v)
	}
	return params
}

// arrays encodes rows as parameters: each of their columns is an array.
func arrays(rows [][]any) [][]byte {
	params := make([][]byte, len(rows[0]))
	for column := range params {
		// What comes before the elements: dimensions, whether there are NULLs, the type of
		// the elements, how many there are, and what the first one's number is.
		a := make([]byte, 20, 20+len(rows)*24)
		binary.BigEndian.PutUint32(a, 1)
		binary.BigEndian.PutUint32(a[12:], uint32(len(rows)))
		binary.BigEndian.PutUint32(a[16:], 1)
		for _, row := range rows {
			at := len(a)
			b, oid, null := encode(append(a, 0, 0, 0, 0), row[column])
			length := uint32(len(b) - at - 4)
			if null {
				length, b[7] = 1<<32-1, 1
			}
			binary.BigEndian.PutUint32(b[at:], length)
			binary.BigEndian.PutUint32(b[8:], oid)
			a = b
		}
		params[column] = a
	}
	return params
}

// keyArray encodes keys as a parameter.
func keyArray(keys []string) []byte {
	rows := make([][]any, len(keys))
	for i, k := range keys {
		rows[i] = []any{k}
	}
	return arrays(rows)[0]
}

// unnest is what makes such arrays rows again, of values like these.
func unnest(like []any) string {
	casts := make([]string, len(like))
	for i, v := range like {
		_, oid, _ := encode(nil, v)
		name := map[uint32]string{pgtype.Int8OID: "bigint", pgtype.BoolOID: "boolean", pgtype.ByteaOID: "bytea"}[oid]
		casts[i] = fmt.Sprintf("$%d::%s[]", i+1, name)
	}
	return "unnest(" + strings.Join(casts, ", ") + ")"
}

// reading goes through the columns of a row, in binary form. The first error stays.
type reading struct {
	columns [][]byte
	err     error
}

// scan reads columns. What is NULL is zero.
func (r *reading) scan(to ...any) {
	for _, to := range to {
		if len(r.columns) == 0 {
			r.err = fmt.Errorf("pgstore: the server's answer has too few columns")
			return
		}
		v := r.columns[0]
		r.columns = r.columns[1:]
		switch to := to.(type) {
		case *int64:
			if *to = 0; len(v) == 8 {
				*to = int64(binary.BigEndian.Uint64(v))
			} else if v != nil {
				r.err = fmt.Errorf("pgstore: the server answered a number of %d bytes", len(v))
			}
		case *bool:
			*to = len(v) == 1 && v[0] == 1
		case *string:
			*to = string(v)
		case *[]byte:
			*to = slices.Clone(v)
		case *dibs.Token:
			*to = dibs.Token{}
			copy(to[:], v)
		case *dibs.Fingerprint:
			*to = dibs.Fingerprint{}
			copy(to[:], v)
		default:
			panic(fmt.Sprintf("pgstore: a column is read into %T", to))
		}
	}
}
