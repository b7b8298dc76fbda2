package anystore

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestReaderOnPostgres: a user with SELECT on the tables lists and checks a store, even if it may
// execute no function and its transactions are read-only. Nothing is written.
func TestReaderOnPostgres(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	fill(t, server.URL())
	server.Query(`CREATE ROLE reader LOGIN; REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC;
		GRANT USAGE ON SCHEMA public TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;
		ALTER ROLE reader SET default_transaction_read_only = on`)
	url := strings.Replace(server.URL(), "postgres@", "reader@", 1)
	reads(t, url+"&migrate=true", "INSERT, UPDATE, DELETE ON public.dibs_key")
	server.Query("ALTER ROLE reader RESET ALL; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO reader")
	refuses(t, url, "GRANT SELECT, INSERT, UPDATE, DELETE ON dibs_key")
	server.Query("REVOKE SELECT ON dibs_holder FROM reader")
	_, err := Open(t.Context(), url, ToList)
	says(t, err, "permission denied for table dibs_holder", "GRANT SELECT ON dibs_holder")
	server.Query("REVOKE USAGE ON SCHEMA public FROM PUBLIC; REVOKE USAGE ON SCHEMA public FROM reader")
	_, err = Open(t.Context(), url, ToList)
	says(t, err, "GRANT USAGE ON SCHEMA public")
}

// TestReaderOnMariaDB: as TestReaderOnPostgres, on MariaDB.
func TestReaderOnMariaDB(t *testing.T) {
	t.Parallel()
	checkReaderOn(t, servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true}), "app.dibs_key")
}

func checkReaderOn(t *testing.T, server *servertest.MariaDBServer, table string) {
	t.Helper()
	fill(t, server.URL())
	server.Query("CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'secret'")
	server.Query("GRANT SELECT ON `app`.* TO reader@'127.0.0.1'")
	url := strings.Replace(server.URL(), "root@", "reader:secret@", 1)
	reads(t, url+"?migrate=true", "INSERT ON dibs_key")
	refuses(t, url, "command denied", "GRANT DELETE", " ON "+table+" TO 'reader'@'127.0.0.1'")
	server.Query("REVOKE SELECT ON `app`.* FROM reader@'127.0.0.1'")
	server.Query("GRANT SELECT ON `app`.dibs_meta TO reader@'127.0.0.1'")
	_, err := Open(t.Context(), url, ToList)
	says(t, err, "GRANT SELECT ON "+table+" TO 'reader'@'127.0.0.1'")
}

// TestVersionOfRedis: a server says its product and version, to a user who may not ask for INFO, too.
func TestVersionOfRedis(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	server.Must("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info")
	for _, url := range []string{server.URL(), "redis://app:secret@" + server.Addr()} {
		s, err := Open(t.Context(), url, ToUse)
		testkit.Must(t, err)
		if v, err := s.Version(t.Context()); err != nil || v != "Redis "+server.Info("redis_version") {
			t.Errorf("its version is %q, %v", v, err)
		}
		testkit.Check(t, s.Close())
	}
}

// TestReaderOnRedis: as TestReaderOnPostgres, on Redis, with the commands that read and those of
// connections.
func TestReaderOnRedis(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	fill(t, server.URL())
	server.Must("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+@connection")
	url := "redis://reader:secret@" + server.Addr()
	reads(t, url, "evalsha")
	refuses(t, url, "ACL SETUSER … +eval;")
	server.Must("ACL", "SETUSER", "reader", "-zrange")
	_, err := Open(t.Context(), url, ToList)
	says(t, err, "ACL SETUSER … +zrange")
	server.Must("ACL", "SETUSER", "reader", "+zrange", "resetkeys")
	_, err = Open(t.Context(), url, ToList)
	says(t, err, "ACL SETUSER … ~PREFIX:*")
}

// fill takes a key, queues behind it, abandons another and leaves a record.
func fill(t *testing.T, url string) {
	t.Helper()
	s := openStore(t, url)
	token := store.NewToken()
	claim := func(key string, token store.Token, mode store.Mode) {
		t.Helper()
		claims := []store.Claim{{Key: dibs.Key{Name: key}, Token: token, Mode: mode, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}}
		answers := make([]store.Answer, 1)
		if err := s.Store.Claim(t.Context(), claims, answers); err != nil || answers[0].Err != nil {
			t.Fatal(err, answers[0].Err)
		}
	}
	settle := func(key string, outcome store.Outcome) {
		t.Helper()
		x := store.Settlement{Key: dibs.Key{Name: key}, Token: token, Outcome: outcome, Data: []byte("done"), Retention: time.Hour}
		if errs := make([]error, 1); s.Store.Settle(t.Context(), []store.Settlement{x}, errs) != nil || errs[0] != nil {
			t.Fatal(errs)
		}
	}
	claim("held", token, store.Try)
	claim("held", store.NewToken(), store.Queue)
	claim("held", store.NewToken(), store.Reserve)
	claim("done", token, store.Try)
	settle("done", store.Keep)
	claim("abandoned", token, store.Try)
	settle("abandoned", store.Abandon)
}

// reads lists and checks the store as a user that may only read. Check says that it cannot look at
// the rights of others, and what this user lacks.
func reads(t *testing.T, url, lacks string) {
	t.Helper()
	s, err := Open(t.Context(), url, ToList)
	testkit.Must(t, err)
	defer s.Close()
	in, err := s.Inspector()
	testkit.Must(t, err)
	found := map[string]store.Entry{}
	for e, err := range in.List(t.Context(), store.Query{Data: true, Places: true}) {
		testkit.Must(t, err)
		found[e.Key.Name] = e
	}
	held, done := found["held"], found["done"]
	if len(found) != 3 || held.Condition != store.ConditionHeld || held.Waiters != 1 || held.Reserved != 1 || len(held.Places) != 2 ||
		done.Condition != store.ConditionDone || string(done.Record.Data) != "done" || found["abandoned"].Condition != store.ConditionAbandoned {
		t.Errorf("it lists %+v", found)
	}
	c, err := Open(t.Context(), url, ToCheck)
	testkit.Must(t, err)
	defer c.Close()
	if v, err := c.Version(t.Context()); err != nil || v == "" {
		t.Errorf("its version is %q, %v", v, err)
	}
	findings, err := c.Check(t.Context())
	testkit.Must(t, err)
	if !slices.ContainsFunc(findings, func(f store.Finding) bool {
		return f.Name == "rights" && f.Severity == store.SeverityUnchecked && strings.Contains(f.What, lacks)
	}) {
		t.Errorf("it finds %+v; want that the rights are unchecked", findings)
	}
	for _, f := range findings {
		if f.Name == "read-only" && f.Severity != store.SeverityUnchecked || f.Name == "wake-ups" {
			t.Errorf("it finds %+v", f)
		}
	}
}

// refuses takes a key as a user that may only read. The error has these texts.
func refuses(t *testing.T, url string, texts ...string) {
	t.Helper()
	s, err := Open(t.Context(), url, ToUse)
	if err == nil {
		defer s.Close()
		claims := []store.Claim{{Key: dibs.Key{Name: "mine"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}}
		err = s.Store.Claim(t.Context(), claims, make([]store.Answer, 1))
	}
	says(t, err, texts...)
}

func says(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("the error is %v; want %q in it", err, text)
		}
	}
}
