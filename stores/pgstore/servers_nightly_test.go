//go:build nightly

package pgstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

func TestConformanceBehindPgBouncer(t *testing.T) {
	t.Parallel() // it mostly waits
	storetest.Run(t, &storetest.Harness{
		Parallel: 6, // each pooler has up to 20 connections to the server
		New: func(t testing.TB, turn time.Duration) *storetest.Subject {
			// Sessions keep the plans of each schema and look through all of them with each new table,
			// so no property has the sessions of another.
			server := serverFor(t)
			url := servertest.PgBouncer(t, server, &servertest.PgBouncerOptions{Settings: loginSoon}).URL()
			o := ownNames()
			o.pushedTTL = turn
			return &storetest.Subject{
				Open:    func() store.Store { return open(t, url, o) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { dropSchema(server, o) },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew: "it reads no clock of its process",
		},
	})
}

// The kinds of transactions that go through a pooler.
func init() {
	for _, name := range []string{"pgx", "sql"} {
		kind := kinds[name]
		kind.url = func() string { return sharedPooler().URL() }
		kinds[name+", PgBouncer"] = kind
	}
	ways["pgx, PgBouncer"] = func() string { return sharedPooler().URL() }
	ways["sql, PgBouncer"] = func() string { return sharedPooler().URL() }
}

// loginSoon: a failed login must not cost 15 s.
var loginSoon = []string{"server_login_retry = 1"}

// sharedPooler is a PgBouncer in transaction mode in front of the server. Its sessions have no
// server_lifetime, because PgBouncer 1.18 ends when a session expires that is being canceled.
var sharedPooler = sync.OnceValue(func() *servertest.PgBouncerServer {
	return servertest.PgBouncer(scope, shared(), &servertest.PgBouncerOptions{PoolSize: 60, Settings: loginSoon})
})

// TestPooler: behind a pooler the store polls, and WakeListen is an error at once.
func TestPooler(t *testing.T) {
	t.Parallel()
	s := open(t, sharedPooler().URL(), ownNames())
	if !s.pooled.Load() || !s.unprepared.Load() {
		t.Error("the pooler was not noticed")
	}
	sqltest.Work(t, s)
	if _, err := Open(t.Context(), sharedPooler().URL(), &Options{Schema: s.names.schema, Prefix: s.names.prefix, Wake: WakeListen}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
	found, err := s.Check(t.Context())
	if err != nil || len(found) == 0 {
		t.Fatalf("%v, %v", found, err)
	}
	if !slices.ContainsFunc(found, func(f store.Finding) bool { return f.Name == "pooler" }) {
		t.Errorf("found %+v, want the pooler among it", found)
	}
}

// TestConformanceBySQLBehindPgBouncer: a pooler makes no difference to leases by SQL.
func TestConformanceBySQLBehindPgBouncer(t *testing.T) {
	t.Parallel() // it mostly waits
	conformBySQL(t, func(trial testing.TB, server *servertest.PostgresServer) string {
		return servertest.PgBouncer(trial, server, &servertest.PgBouncerOptions{Settings: loginSoon}).URL()
	})
}

func TestStorm(t *testing.T) {
	t.Parallel()
	suite().Storm(t)
}

// TestStoppedPatroni: while the old primary continues without its Patroni, an address with Patroni's
// health check leads to the new primary. A list of hosts may lead to the old one, which grants nothing.
func TestStoppedPatroni(t *testing.T) {
	t.Parallel()
	c := servertest.Patroni(t, nil)
	for {
		primary, err := c.Primary()
		testkit.Must(t, err)
		if primary == c.Nodes[0] {
			break
		}
		testkit.Must(t, c.Switchover())
		testkit.Must(t, c.Await())
	}
	migrated := open(t, c.URL(), nil)
	testkit.Must(t, migrated.Close())
	before, err := c.TimelineAfter(0)
	testkit.Must(t, err)
	c.Nodes[0].Pause()
	_, err = c.TimelineAfter(before)
	testkit.Must(t, err)

	ask := func(s *Store, limit time.Duration) (store.Answer, error) {
		claim := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
		answers := make([]store.Answer, 1)
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		err := s.Claim(ctx, []store.Claim{claim}, answers)
		return answers[0], err
	}
	listed := open(t, c.HostsURL(), nil)
	if a, err := ask(listed, 2*time.Second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the old primary answers with %v, %v", a, err)
	}
	var through *Store
	testkit.Eventually(t, "the address leads to the new primary", func() bool {
		through, err = Open(t.Context(), c.URL(), nil)
		return err == nil
	})
	t.Cleanup(func() { testkit.Check(t, through.Close()) })
	testkit.Eventually(t, "the new primary grants", func() bool {
		a, err := ask(through, testkit.Limit)
		return err == nil && a.State == store.Granted
	})
	c.Nodes[0].Continue()
	testkit.Eventually(t, "the list leads to the new primary", func() bool {
		a, err := ask(listed, testkit.Limit)
		return err == nil && a.State == store.Held
	})
}

// notFlipped are settings that end the server or its sessions, fill its log, or that the store refuses.
var notFlipped = []string{
	"zero_damaged_pages", "ignore_system_indexes", "ignore_checksum_failure", "post_auth_delay", "allow_in_place_tablespaces",
	"session_preload_libraries", "local_preload_libraries", "log_min_messages", "log_statement", "log_parser_stats", "log_planner_stats", "log_executor_stats", "log_statement_stats",
	"debug_print_parse", "debug_print_rewritten", "debug_print_plan", "trace_sort", "trace_notify", "trace_locks", "backtrace_functions",
	"default_transaction_read_only", "transaction_read_only", // the store refuses them, see TestOpenErrors
	"default_transaction_isolation", "transaction_isolation", // the store refuses them, see TestCheck
	"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "client_connection_check_interval", // a millisecond ends each call
	"role", "session_authorization", "client_encoding", "is_superuser",
}

// TestInherited: what a session inherits from the settings of its role changes no answer, whichever
// setting it is, and whatever its value.
func TestInherited(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	server.Query("CREATE ROLE app SUPERUSER LOGIN")
	before := open(t, server.URL(), &Options{PruneEvery: -1})
	url := strings.Replace(server.URL(), "postgres@", "app@", 1)
	flips := server.Query(`SELECT s.name, v.v FROM pg_settings s, LATERAL (
			SELECT unnest(s.enumvals) AS v UNION SELECT s.min_val UNION SELECT s.max_val
			UNION SELECT unnest(ARRAY['on', 'off']) WHERE s.vartype = 'bool'
			UNION SELECT 'pg_temp, pg_catalog' WHERE s.name = 'search_path'
		) v WHERE s.context IN ('user', 'superuser') AND v.v IS NOT NULL AND v.v <> s.setting ORDER BY 1, 2`)
	for _, f := range flips {
		name, value := f[0], f[1]
		if slices.Contains(notFlipped, name) {
			continue
		}
		to := "'" + value + "'"
		if name == "search_path" {
			to = value
		}
		if _, err := server.Do("ALTER ROLE app SET " + name + " = " + to); err != nil {
			t.Logf("%s = %s: the server refuses it", name, value)
			continue
		}
		after, err := Open(t.Context(), url, &Options{PruneEvery: -1})
		if err == nil {
			err = sqltest.Unmoved(t.Context(), before, after)
			after.Close()
		}
		if err != nil {
			t.Errorf("%s = %s: %v", name, value, err)
		}
		server.Query("ALTER ROLE app RESET ALL")
	}
}
