-- The set-up of the server. What this user may not see is NULL.
SELECT
    current_setting('server_version'),
    current_setting('server_version_num')::integer,
    pg_is_in_recovery(),
    current_setting('transaction_read_only')::boolean,
    current_setting('default_transaction_isolation'),
    current_setting('fsync')::boolean,
    current_setting('full_page_writes')::boolean,
    current_setting('synchronous_standby_names', true),
    current_setting('synchronous_commit'),
    current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean,
    (SELECT extract(epoch FROM current_setting('statement_timeout')::interval)::float8),
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
    (SELECT sum(numbackends)::integer FROM pg_stat_database),
    (SELECT count(*) FROM pg_stat_replication),
    pg_has_role('pg_read_all_stats', 'MEMBER') OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
    (SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::float8 FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend'),
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
