package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestOpenErrors: what is wrong with a server is said when a store is opened, with
// the cure.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{Password: "secret", MaxConnections: 20})
	server.Query("CREATE USER nobody@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT SELECT ON app.* TO nobody@'127.0.0.1'")
	db := openDB(t, server.URL())
	testkit.Must(t, errors.Join(Migrate(t.Context(), db, nil), Migrate(t.Context(), db, &Options{Prefix: "newer"})))
	server.Query("UPDATE newer_meta SET version = 99")
	at := func(was, is string) string { return strings.Replace(server.URL(), was, is, 1) }
	url := server.URL()
	sqltest.OpenErrors(t, map[string]sqltest.Wrong{
		"no URL":       {URL: "postgres://x", Is: ErrURL, Says: "write mysql://"},
		"no database":  {URL: at("/app", ""), Is: ErrURL, Says: "names no database"},
		"parameter":    {URL: url + "?charset=latin1", Is: ErrURL, Says: "charset"},
		"wrong tls":    {URL: url + "?tls=maybe", Is: ErrURL, Says: "skip-verify"},
		"no authority": {URL: url + "?tls-ca=/nowhere", Is: ErrURL, Says: "/nowhere"},
		"no server":    {URL: at(server.Addr(), "127.0.0.1:1"), Is: ErrUnreachable},
		"no socket":    {URL: url + "?socket=/nowhere", Is: ErrUnreachable},
		"no TLS":       {URL: url + "?tls=true", Is: ErrUnreachable, Says: "write tls=false"},
		"password":     {URL: at("secret", "wrong"), Is: ErrUnauthorized, Says: "password is wrong"},
		"database":     {URL: at("/app", "/none"), Is: ErrUnsupported, Says: "create the database"},
		"rights":       {URL: at("root:", "nobody:") + "?prefix=none&migrate=true", Is: ErrUnauthorized, Says: "README"},
		"no tables":    {URL: url + "?prefix=none", Is: ErrNotMigrated, Says: "dibs migrate"},
		"newer tables": {URL: url + "?prefix=newer", Is: ErrNewer, Says: "version 99"},
	}, func(url string) (sqltest.Store, error) { return Open(t.Context(), url, nil) })
	claim := func(s *Store) error {
		answers := make([]store.Answer, 1)
		return s.Claim(t.Context(), []store.Claim{{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1}}, answers)
	}
	s := open(t, server.URL(), nil)
	server.Query("SET GLOBAL read_only = 1")
	server.Query("GRANT SELECT, INSERT, UPDATE, DELETE ON app.* TO nobody@'127.0.0.1'")
	reader, err := Open(t.Context(), at("root:", "nobody:"), &Options{PruneEvery: -1})
	testkit.Must(t, err)
	if err := claim(reader); !errors.Is(err, ErrReadOnly) {
		t.Errorf("a server that takes no writes: %v, want ErrReadOnly", err)
	}
	server.Query("DROP TABLE dibs_key")
	if err := claim(s); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("a table that is gone: %v, want ErrNotMigrated", err)
	}
	testkit.Check(t, errors.Join(reader.Close(), reader.Close()))
	if err := claim(reader); !errors.Is(err, ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
}

// TestVersions: which servers are too old.
func TestVersions(t *testing.T) {
	t.Parallel()
	for version, old := range map[string]bool{
		"5.7.44-log": true, "8.0.36": false, "9.7.0": false, "10.5.23-MariaDB": true, "10.6.0-MariaDB-log": false,
		"5.5.5-10.4.1-MariaDB": true, "11.4.2-MariaDB-ubu2404": false, "an unknown server": false,
	} {
		if tooOld(version) != old {
			t.Errorf("%s: %v", version, !old)
		}
	}
}

// TestErrorTypes: metrics tell what is wrong with the server.
func TestErrorTypes(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{Password: "secret"})
	db := openDB(t, server.URL())
	testkit.Must(t, Migrate(t.Context(), db, nil))
	server.Query("CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT SELECT, INSERT, UPDATE, DELETE ON app.* TO app@'127.0.0.1'")
	s, err := Open(t.Context(), strings.Replace(server.URL(), "root:", "app:", 1), &Options{PruneEvery: -1})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	query := func(statement string) func() { return func() { server.Query(statement) } }
	sqltest.ErrorTypes(t, s,
		sqltest.Trouble{Type: "read_only", Happen: query("SET GLOBAL read_only = 1"), Over: query("SET GLOBAL read_only = 0")},
		sqltest.Trouble{
			Type:   "unauthorized",
			Happen: query("SET PASSWORD FOR app@'127.0.0.1' = PASSWORD('changed'); KILL USER app"),
			Over:   query("SET PASSWORD FOR app@'127.0.0.1' = PASSWORD('secret')"),
		},
		sqltest.Trouble{Type: "timeout", Happen: server.Pause, Over: server.Continue},
		sqltest.Trouble{Type: "not_migrated", Happen: query("RENAME TABLE dibs_key TO elsewhere"), Over: query("RENAME TABLE elsewhere TO dibs_key")},
		sqltest.Trouble{Type: "unreachable", Happen: server.Kill, Over: server.Restart},
	)
}

// TestRenewalWithoutAnswer: a renewal whose answer is lost with its connection is made
// again.
func TestRenewalWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := mariadb()
	wire := servertest.NewWire(t, server.Addr())
	c := sqltest.Client(t, open(t, server.URLAt(wire.Addr()), &Options{Prefix: testkit.Own(), PruneEvery: -1}), nil)
	lease, err := c.Acquire(t.Context(), "k", nil)
	testkit.Must(t, err)
	for i := range 3 {
		lost := wire.LoseReplyTo("")
		if err := lease.Save(t.Context(), fmt.Append(nil, i)); err != nil {
			t.Errorf("round %d: %v", i, err)
		}
		<-lost
	}
	testkit.Must(t, lease.Abandon(t.Context()))
	again, err := c.Acquire(t.Context(), "k", nil)
	if err != nil || string(again.Progress()) != "2" {
		t.Fatalf("%q, %v", again.Progress(), err)
	}
	testkit.Check(t, again.Release())
}

// TestStandstill: a process that pauses in the middle of a transaction does not
// keep the key's row locked for long.
func TestStandstill(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		s := open(t, server.URL(), &Options{Prefix: testkit.Own(), PruneEvery: -1})
		k := store.Key{Name: "k"}
		sqltest.Cycle(t, s, k)
		err := use(t.Context(), s.front, func(c *sql.Conn) error {
			lock := s.script().raw(begins).done()
			loadBatch(lock, engine.NewBatch(engine.Tokens{engine.KeyOf(k): nil}, false, 0), remote.Locking, new(bool))
			testkit.Check(t, lock.run(t.Context(), c))
			// The others wait, and fail alone, until the server has had enough of it.
			testkit.Eventually(t, "the row is free", func() bool {
				answers := make([]store.Answer, 1)
				claim := store.Claim{Key: k, Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1}
				testkit.Check(t, s.Claim(t.Context(), []store.Claim{claim}, answers))
				return answers[0].State == store.Granted
			})
			return s.script().raw("COMMIT").done().run(t.Context(), c)
		})
		if err == nil {
			t.Error("the transaction was not ended")
		}
	})
}

// TestMovedName: when the primary is made read-only, and its name leads to another server, the store
// goes there, although its connections to the old primary last.
func TestMovedName(t *testing.T) {
	t.Parallel()
	user := "CREATE USER 'app'@'127.0.0.1'; GRANT ALL ON app.* TO 'app'@'127.0.0.1'"
	old, next := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true}), servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true})
	var at atomic.Value // the address that the name has
	at.Store(old.Addr())
	name := "moves" + testkit.Own()
	mysql.RegisterDialContext(name, func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", at.Load().(string))
	})
	for _, s := range []*servertest.MariaDBServer{old, next} {
		s.Query(user)
		made, err := Open(t.Context(), s.URL(), &Options{Migrate: true, PruneEvery: -1})
		testkit.Must(t, err)
		testkit.Must(t, made.Close())
	}
	config, _, err := parse(strings.Replace(old.URL(), "//root@", "//app@", 1), nil)
	testkit.Must(t, err)
	config.Net = name
	s, err := New(t.Context(), config, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, s.Close()) })
	claim := func() error {
		c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
		return s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1))
	}
	testkit.Must(t, claim())
	old.Query("SET GLOBAL read_only = 1")
	at.Store(next.Addr())
	testkit.Eventually(t, "it goes to the new primary", func() bool {
		return claim() == nil && next.Query("SELECT COUNT(*) FROM dibs_key WHERE token <> ''")[0][0] == "1"
	})
}

// TestTryEnds: if the context has ended the error says so, although the driver closes the connection
// then and returns another error.
func TestTryEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	err := try(ctx, func() error {
		if tries++; tries == 2 {
			cancel()
		}
		return driver.ErrBadConn
	})
	if tries != 2 || !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
		t.Errorf("after %d tries: %v", tries, err)
	}
}

// TestWakeWhenAGraceIsOver: a waiter behind a reserved place is woken when the Grace of the place is
// over, even if the place blocked a client in another process.
func TestWakeWhenAGraceIsOver(t *testing.T) {
	t.Parallel()
	o := &Options{Prefix: testkit.Own(), PruneEvery: -1} // which would find it as well, later
	s, other := open(t, mariadb().URL(), o), open(t, mariadb().URL(), o)
	woken := make(chan store.Token, 10)
	t.Cleanup(s.Notify(func(token store.Token, _ store.Answer) { woken <- token }))
	k := store.Key{Name: "k"}
	held := func(s *Store, c store.Claim) store.Claim {
		t.Helper()
		c.Key, c.Token = k, store.NewToken()
		if a := sqltest.Ask(t, s, c); a.State != store.Held {
			t.Fatalf("%+v, want Held", a)
		}
		return c
	}
	holder := sqltest.Hold(t, other, k.Name)
	held(other, store.Claim{Mode: store.Reserve, Grace: 50 * time.Millisecond})
	waiter := held(s, store.Claim{Mode: store.Queue})
	testkit.Must(t, sqltest.Settle(t, other, store.Settlement{Key: k, Token: holder}))
	held(other, store.Claim{})
	if token := testkit.Await(t, "the waiter is woken", woken); token != waiter.Token {
		t.Fatalf("%v was woken, want the waiter", token)
	}
	if a := sqltest.Ask(t, s, waiter); a.State != store.Granted {
		t.Fatalf("the waiter was answered %+v", a)
	}
}
