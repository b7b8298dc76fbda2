//go:build nightly

package pgstore

import (
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

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
