package pgstore

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestCallsThatMayBeDone: a call that a stopping server refused is made again. A call that
// the server may have carried out is not, because a second settlement would find the lease
// lost that the first one ended.
func TestCallsThatMayBeDone(t *testing.T) {
	shutdown := &pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P01", Message: "terminating connection due to administrator command"}
	parsed := []pgproto3.BackendMessage{&pgproto3.ParseComplete{}, &pgproto3.BindComplete{}}
	columns := &pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("i"), DataTypeOID: 23, DataTypeSize: 4, Format: 1}}}
	for name, c := range map[string]struct {
		answers [][]pgproto3.BackendMessage // of each call; the last one is that of all others
		calls   int32
	}{
		"refused, then rows":  {[][]pgproto3.BackendMessage{{shutdown}, append(parsed, columns, &pgproto3.CommandComplete{CommandTag: []byte("SELECT 0")}, shutdown)}, 2},
		"committed, no rows":  {[][]pgproto3.BackendMessage{append(parsed, &pgproto3.NoData{}, &pgproto3.CommandComplete{CommandTag: []byte("COMMIT")}, shutdown)}, 1},
		"cut without a word":  {[][]pgproto3.BackendMessage{nil}, 1},
		"cut before the rows": {[][]pgproto3.BackendMessage{parsed}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			addr := fakeServer(t, func(b *pgproto3.Backend) {
				n := int(calls.Add(1))
				for _, m := range c.answers[min(n, len(c.answers))-1] {
					b.Send(m)
				}
			})
			config, err := pgxpool.ParseConfig("postgres://app@" + addr + "/app?sslmode=disable")
			testkit.Must(t, err)
			pool, err := pgxpool.NewWithConfig(t.Context(), sized(own(config, t.Context()), 1))
			testkit.Must(t, err)
			defer pool.Close()
			s := &Store{}
			s.unprepared.Store(true)
			err = try(t.Context(), func() error {
				return s.ask(t.Context(), pool, query{statement: &statement{sql: "SELECT i FROM settle()"}})
			})
			if n := calls.Load(); n != c.calls || !errors.Is(err, ErrUnreachable) {
				t.Errorf("%d calls, %v; want %d", n, err, c.calls)
			}
		})
	}
}

// fakeServer speaks PostgreSQL's protocol as far as that: each connection is let in, has
// one call answered, and is closed.
func fakeServer(t *testing.T, answer func(*pgproto3.Backend)) (addr string) {
	t.Helper()
	return testkit.Serve(t, func(_ int, conn *net.TCPConn) {
		b := pgproto3.NewBackend(conn, conn)
		if _, err := b.ReceiveStartupMessage(); err != nil {
			return
		}
		b.Send(&pgproto3.AuthenticationOk{})
		b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if b.Flush() != nil {
			return
		}
		for {
			m, err := b.Receive()
			if err != nil {
				return
			}
			if _, ok := m.(*pgproto3.Sync); ok {
				answer(b)
				_ = b.Flush()
				return
			}
		}
	})
}
