package pgstore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// encode appends a value, or what it points to, in PostgreSQL's binary form. A nil slice is NULL.
func encode(b []byte, v any) (to []byte, oid uint32, null bool) {
	switch v := v.(type) {
	case int64:
		return binary.BigEndian.AppendUint64(b, uint64(v)), pgtype.Int8OID, false
	case *int64:
		return binary.BigEndian.AppendUint64(b, uint64(*v)), pgtype.Int8OID, false
	case *time.Duration: // in microseconds
		return binary.BigEndian.AppendUint64(b, uint64(engine.Micros(*v))), pgtype.Int8OID, false
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
	case store.Token:
		return encode(b, &v)
	case *store.Token:
		if !v.IsZero() {
			b = append(b, v[:]...)
		}
		return b, pgtype.ByteaOID, false
	case *store.Fingerprint:
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

// arrays encodes rows as parameters, each of which is the array of a column. The values of a row
// follow those of the row before it.
func arrays(columns int, values []any) [][]byte {
	params, rows := make([][]byte, columns), len(values)/columns
	b := make([]byte, 0, columns*(20+rows*24))
	for column := range params {
		// In front of the elements: the dimensions, whether there are NULLs, the type of the
		// elements, how many there are, and the number of the first one.
		start := len(b)
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)
		b = binary.BigEndian.AppendUint32(b, uint32(rows))
		b = append(b, 0, 0, 0, 1)
		for i := column; i < len(values); i += columns {
			at := len(b)
			to, oid, null := encode(append(b, 0, 0, 0, 0), values[i])
			length := uint32(len(to) - at - 4)
			if null {
				length, to[start+7] = 1<<32-1, 1
			}
			binary.BigEndian.PutUint32(to[at:], length)
			binary.BigEndian.PutUint32(to[start+8:], oid)
			b = to
		}
		params[column] = b[start:]
	}
	return params
}

// keyArray encodes keys as a parameter.
func keyArray(keys []string) []byte {
	values := make([]any, len(keys))
	for i := range keys {
		values[i] = &keys[i]
	}
	return arrays(1, values)[0]
}

// unnest returns the SQL that makes arrays of such values rows again.
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

// scan reads columns. NULL is read as zero.
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
				r.err = fmt.Errorf("pgstore: the server's answer has a number of %d bytes", len(v))
			}
		case *bool:
			*to = len(v) == 1 && v[0] == 1
		case *string:
			*to = string(v)
		case *[]byte:
			*to = slices.Clone(v)
		case *store.Token:
			*to = store.Token{}
			copy(to[:], v)
		case *store.Fingerprint:
			*to = store.Fingerprint{}
			copy(to[:], v)
		default:
			panic(fmt.Sprintf("pgstore: a column is read into %T", to))
		}
	}
}
