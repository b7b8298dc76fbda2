package pgstore

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestEndedByTheServer: a call that met a server about to stop is made again. One that was
// done when the server said so is not, though it had no rows.
func TestEndedByTheServer(t *testing.T) {
	var calls atomic.Int32
	shutdown := &pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P01", Message: "terminating connection due to administrator command"}
	addr := fakeServer(t, func(b *pgproto3.Backend) {
		if calls.Add(1) > 1 {
			b.Send(&pgproto3.ParseComplete{})
			b.Send(&pgproto3.BindComplete{})
			b.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("i"), DataTypeOID: 23, DataTypeSize: 4, Format: 1}}})
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 0")})
		}
		b.Send(shutdown)
	})
	config, err := pgxpool.ParseConfig("postgres://app@" + addr + "/app?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), sized(own(config), 1))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := &Store{}
	s.unprepared.Store(true)
	err = try(t.Context(), func() error {
		return s.ask(t.Context(), pool, query{statement: &statement{sql: "SELECT i FROM settle()"}})
	})
	if n := calls.Load(); n != 2 || !errors.Is(err, ErrUnreachable) {
		t.Errorf("%d calls, %v; want 2, the first of which was not done", n, err)
	}
}

// fakeServer speaks PostgreSQL's protocol as far as that: each connection is let in, has
// one call answered, and is closed.
func fakeServer(t *testing.T, answer func(*pgproto3.Backend)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	serve := func(conn net.Conn) {
		defer conn.Close()
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
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return l.Addr().String()
}
