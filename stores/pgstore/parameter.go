package pgstore

import (
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// parameters are those of a URL that this package, pgx and libpq know.
var parameters = []string{
	"schema", "prefix", "wake", "migrate", "host", "port", "user", "password", "dbname", "passfile", "servicefile", "service",
	"sslmode", "sslkey", "sslcert", "sslrootcert", "sslpassword", "sslsni", "sslnegotiation", "target_session_attrs", "connect_timeout",
	"application_name", "search_path", "options", "statement_timeout", "lock_timeout", "channel_binding", "krbsrvname", "krbspn",
	"pool_max_conns", "pool_min_conns", "pool_max_conn_lifetime", "pool_max_conn_idle_time", "pool_health_check_period",
	"default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity",
}

// misspelt returns the parameter of a URL that the server does not know. pgx sends the server all
// parameters that it does not know itself.
func misspelt(e *pgconn.PgError) (name string, ok bool) {
	const says = `unrecognized configuration parameter "`
	_, rest, ok := strings.Cut(e.Message, says)
	if !ok || e.Code != "42704" {
		return "", false
	}
	name, _, ok = strings.Cut(rest, `"`)
	return name, ok
}
