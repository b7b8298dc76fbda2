package pgstore

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/store"
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

// synchronous starts a server with a synchronous standby, and returns the way between them.
func synchronous(t *testing.T) (primary *servertest.PostgresServer, link *wire.Wire) {
	t.Helper()
	options := servertest.PostgresOptions{NoSync: true, Standbys: true, Settings: []string{"synchronous_standby_names = '*'"}}
	primary = servertest.Postgres(t, &options)
	options.StandbyOf = primary
	standby := servertest.Postgres(t, &options)
	link = servertest.NewWire(t, primary.Addr())
	standby.Follow(link.Addr())
	standby.AwaitStandby(primary)
	return primary, link
}

// TestSynchronousStandby: while no synchronous standby has a record, no claim is answered from it,
// whatever ended the wait of the holder's COMMIT. Nor does a call that gives up end it.
func TestSynchronousStandby(t *testing.T) {
	t.Parallel()
	primary, link := synchronous(t)
	s := open(t, primary.URL(), nil)
	waiting := func() int {
		return len(primary.Query("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%settle%'"))
	}
	given := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1, MaxAge: time.Hour}
	answers := make([]store.Answer, 1)
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{given}, answers))

	link.Set(wire.Trouble{Hold: true}, nil)
	settling, giveUp := context.WithCancel(t.Context())
	settled := make(chan error, 1)
	go func() {
		settled <- s.Settle(settling, []store.Settlement{{Key: given.Key, Token: given.Token, Outcome: store.Keep, Data: []byte("kept"), Retention: time.Hour}}, make([]error, 1))
	}()
	testkit.Eventually(t, "the settlement waits for the standby", func() bool { return waiting() == 1 })
	giveUp()
	if err := <-settled; !errors.Is(err, context.Canceled) {
		t.Errorf("the settlement is answered with %v", err)
	}

	primary.Query("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%settle%'")
	testkit.Eventually(t, "the record is visible", func() bool {
		return primary.Query("SELECT count(*) FROM public.dibs_key WHERE rec_data = 'kept'")[0][0] == "1"
	})
	late := given
	late.Token = store.NewToken()
	waits := func(what string, claim store.Claim, statement string) {
		t.Helper()
		waiting := func() int { // the server continues with what was given up
			return len(primary.Query("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '" + statement + "'"))
		}
		before := waiting()
		asking, stop := context.WithCancel(t.Context())
		asked := make(chan error, 1)
		go func() { asked <- s.Claim(asking, []store.Claim{claim}, answers) }()
		testkit.Eventually(t, what+" waits for the standby", func() bool { return waiting() == before+1 })
		stop()
		if err := <-asked; !errors.Is(err, context.Canceled) {
			t.Errorf("%s is answered with %v, %v", what, answers[0], err)
		}
	}
	waits("the claim", late, "%claim%")
	look := late
	look.Mode, look.TTL = store.Look, 0
	waits("the look", look, "%claim%")
	primary.Query("SET synchronous_commit = local; UPDATE public.dibs_key SET busy = true")
	waits("the look at a busy key", look, "COMMIT")
	testkit.Must(t, s.Close()) // and whatever it does in the background
	if n := strings.Count(primary.Log(), "canceling wait for synchronous replication"); n != 1 {
		t.Errorf("%d waits for the standby were cancelled; the test did one", n)
	}

	link.Set(wire.Trouble{}, nil)
	s = open(t, primary.URL(), nil)
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{late}, answers))
	if answers[0].State != store.Done || string(answers[0].Record.Data) != "kept" {
		t.Errorf("the claim is answered with %v", answers[0])
	}
}

// TestGivenUpConnections: calls that are given up while the standby is away keep no more connections
// of the server than the store may have.
func TestGivenUpConnections(t *testing.T) {
	t.Parallel()
	primary, link := synchronous(t)
	s := open(t, primary.URL(), nil)
	claim := store.Claim{Key: store.Key{Name: "k"}, TTL: time.Hour, Permits: 1, Weight: 1}
	link.Set(wire.Trouble{Hold: true}, nil)
	for range 4 * frontConns {
		claim.Token = store.NewToken()
		claim.Key.Name += "k"
		asking, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := s.Claim(asking, []store.Claim{claim}, make([]store.Answer, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the claim is answered with %v", err)
		}
		stop()
	}
	n := primary.Query("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")[0][0]
	if left, err := strconv.Atoi(n); err != nil || left == 0 || left > frontConns {
		t.Errorf("%s connections wait for the standby; want at most %d", n, frontConns)
	}
}

// TestFailover: a URL with several hosts finds the primary that took the place of another one. What
// was held stays held, each waiter waits on, and what was kept is not done again.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(old, next *servertest.PostgresServer){
		"the old primary is gone, and comes back as a standby": func(old, next *servertest.PostgresServer) {
			old.Kill()
			next.Promote()
			old.Rejoin(next, next.Addr())
		},
		"the old primary does not answer": func(old, next *servertest.PostgresServer) {
			old.Pause()
			next.Promote()
			next.Query("ALTER SYSTEM SET synchronous_standby_names = ''")
			next.Query("SELECT pg_reload_conf()")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := servertest.PostgresOptions{NoSync: true, Standbys: true, Settings: []string{"synchronous_standby_names = '*'"}}
			old := servertest.Postgres(t, &options)
			options.StandbyOf = old
			next := servertest.Postgres(t, &options)
			next.AwaitStandby(old)
			url := strings.Replace(old.URL(), old.Addr(), old.Addr()+","+next.Addr(), 1) + "&connect_timeout=2"
			var clients [2]*dibs.Client // of two processes
			for i := range clients {
				var err error
				clients[i], err = dibs.New(open(t, url, nil), &dibs.Options{TTL: time.Hour})
				testkit.Must(t, err)
				t.Cleanup(func() { testkit.Check(t, clients[i].Close()) })
			}
			ran := 0
			once := func(c *dibs.Client) (string, error) {
				return dibs.Once(t.Context(), c, "order 7", nil, func(context.Context) (string, error) { ran++; return "kept", nil })
			}
			_, err := once(clients[0])
			testkit.Must(t, err)
			held, err := clients[0].Acquire(t.Context(), "k", nil)
			testkit.Must(t, err)
			granted := make(chan *dibs.Lease, 1)
			go func() {
				for {
					// A waiter gives up when the store is away for long; its caller tries again.
					if lease, err := clients[1].Acquire(t.Context(), "k", &dibs.AcquireOptions{Wait: testkit.Limit}); err == nil || t.Context().Err() != nil {
						granted <- lease
						return
					}
				}
			}()
			testkit.Eventually(t, "it waits", func() bool { return old.Query("SELECT count(*) FROM public.dibs_waiter")[0][0] == "1" })

			end(old, next)
			testkit.Eventually(t, "the new primary answers", func() bool {
				found, err := clients[0].Held(t.Context(), "k")
				return err == nil && found
			})
			var answer string
			testkit.Eventually(t, "the answer is there", func() bool { answer, err = once(clients[1]); return err == nil })
			if answer != "kept" || ran != 1 {
				t.Errorf("it ran %d times, and is answered %q", ran, answer)
			}
			select {
			case <-granted:
				t.Error("two hold the key")
			default:
			}
			_ = held.Release() // what fails is done in the background
			lease := testkit.Await(t, "the waiter continues", granted)
			if lease.Fence() <= held.Fence() {
				t.Errorf("the fence %d was granted after %d", lease.Fence(), held.Fence())
			}
			testkit.Check(t, lease.Release())
		})
	}
}

// TestReadOnlyPrimary: when the primary takes no writes any more, the store goes to another host.
func TestReadOnlyPrimary(t *testing.T) {
	t.Parallel()
	old := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	next := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	open(t, next.URL(), nil) // for its tables
	s := open(t, strings.Replace(old.URL(), old.Addr(), old.Addr()+","+next.Addr(), 1), nil)
	claim := func() error {
		c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
		return s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1))
	}
	testkit.Must(t, claim())
	old.Query("ALTER SYSTEM SET default_transaction_read_only = on")
	old.Query("SELECT pg_reload_conf()")
	testkit.Eventually(t, "it goes to the other host", func() bool {
		return claim() == nil && next.Query("SELECT count(*) FROM public.dibs_key WHERE token <> ''")[0][0] == "1"
	})
}
