package pgstore

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestOpenErrors: what is wrong with a server is said when a store is opened, with
// the cure.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{Password: "secret"})
	server.Query("CREATE ROLE nobody LOGIN PASSWORD 'secret'; CREATE SCHEMA newer")
	if err := func() error {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		return errors.Join(Migrate(t.Context(), conn, nil), Migrate(t.Context(), conn, &Options{Schema: "newer"}))
	}(); err != nil {
		t.Fatal(err)
	}
	server.Query("UPDATE newer.dibs_meta SET version = 99")
	at := func(was, is string) string { return strings.Replace(server.URL(), was, is, 1) }
	url := server.URL()
	sqltest.OpenErrors(t, map[string]sqltest.Wrong{
		"no URL":       {URL: "mysql://x", Is: ErrURL, Says: "write postgres://"},
		"no number":    {URL: at(":"+server.Addr()[10:], ":port"), Is: ErrURL},
		"wrong wake":   {URL: url + "&wake=up", Is: ErrURL, Says: "auto, listen or poll"},
		"no server":    {URL: at(server.Addr(), "127.0.0.1:1"), Is: ErrUnreachable},
		"no TLS":       {URL: at("sslmode=disable", "sslmode=require"), Is: ErrUnreachable, Says: "write sslmode=disable"},
		"password":     {URL: at("secret", "wrong"), Is: ErrUnauthorized, Says: "password is wrong"},
		"database":     {URL: at("/postgres?", "/none?"), Is: ErrUnsupported, Says: "create the database"},
		"rights":       {URL: at("postgres:secret", "nobody:secret"), Is: ErrUnauthorized, Says: "README"},
		"no tables":    {URL: url + "&prefix=none", Is: ErrNotMigrated, Says: "dibs migrate"},
		"newer tables": {URL: url + "&schema=newer", Is: ErrNewer, Says: "version 99"},
		"may not make": {URL: at("postgres:secret", "nobody:secret") + "&prefix=mine&migrate=true", Is: ErrUnauthorized},
		"no schema":    {URL: url + "&schema=none", Is: ErrNoSchema, Says: `"none"`},
		"not by Open":  {URL: url + "&schema=none&migrate=true", Is: ErrNoSchema, Says: "dibs migrate"},
		"misspelt":     {URL: url + "&sslmod=disable", Is: ErrURL, Says: "did you mean sslmode?"},
		"misspelt too": {URL: url + "&shema=locks", Is: ErrURL, Says: "did you mean schema?"},
		"no secret":    {URL: url + "&sslmode=no&sslpassword=hidden", Is: ErrURL, Says: "sslmode is invalid"},
	}, func(url string) (sqltest.Store, error) { return Open(t.Context(), url, nil) })
	server.Query("ALTER SYSTEM SET default_transaction_read_only = on")
	server.Query("SELECT pg_reload_conf()")
	testkit.Eventually(t, "ErrReadOnly", func() bool {
		s, err := Open(t.Context(), server.URL(), nil)
		if err == nil {
			s.Close()
		}
		return errors.Is(err, ErrReadOnly)
	})
}

// TestIsolation: at another isolation level the functions refuse to work.
func TestIsolation(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), ownNames())
	_, err := Open(t.Context(), shared().URL()+"&default_transaction_isolation=serializable", namesOf(s))
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "ALTER ROLE") {
		t.Errorf("%v, want ErrUnsupported with the cure", err)
	}
}

// TestOpenHanging: a server that accepts connections and does not answer is unreachable.
func TestOpenHanging(t *testing.T) {
	t.Parallel()
	silent := testkit.Listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	_, err := Open(ctx, "postgres://app@"+silent.Addr().String()+"/app", nil)
	if !errors.Is(err, ErrUnreachable) || ctx.Err() != nil {
		t.Errorf("%v, want ErrUnreachable", err)
	}
}

// TestOwnConnections: a store does not use the pool that it was made with.
func TestOwnConnections(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), shared().URL()+"&pool_max_conns=1")
	testkit.Must(t, err)
	defer pool.Close()
	conn, err := pool.Acquire(t.Context())
	testkit.Must(t, err)
	defer conn.Release()
	o := ownNames()
	shared().Query("CREATE SCHEMA " + o.Schema)
	o.Migrate = true
	s, err := New(t.Context(), pool, o)
	testkit.Must(t, err)
	sqltest.Work(t, s)
	testkit.Check(t, s.Close())
}

// TestErrorTypes: metrics tell what is wrong with the server.
func TestErrorTypes(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{Password: "secret", NoSync: true})
	server.Query("CREATE ROLE app SUPERUSER LOGIN PASSWORD 'secret'")
	s := open(t, strings.Replace(server.URL(), "postgres:secret", "app:secret", 1), nil)
	query := func(statements ...string) func() {
		return func() {
			for _, statement := range statements {
				server.Query(statement)
			}
		}
	}
	const end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'"
	sqltest.ErrorTypes(t, s,
		sqltest.Trouble{
			Type:   "read_only",
			Happen: query("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"),
			Over:   query("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"),
		},
		sqltest.Trouble{Type: "unauthorized", Happen: query("ALTER ROLE app PASSWORD 'changed'", end), Over: query("ALTER ROLE app PASSWORD 'secret'")},
		sqltest.Trouble{Type: "timeout", Happen: server.Pause, Over: server.Continue},
		sqltest.Trouble{Type: "not_migrated", Happen: query("ALTER TABLE dibs_key RENAME TO elsewhere"), Over: query("ALTER TABLE elsewhere RENAME TO dibs_key")},
		sqltest.Trouble{Type: "unreachable", Happen: server.Kill, Over: server.Restart},
	)
}

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
