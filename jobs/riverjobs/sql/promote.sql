-- Makes jobs of the keys ($1) runnable: the first $3 unfinished jobs with tickets that were
-- inserted after the id in $2. A job that a worker has parked again must be among the first $4,
-- which can run at once. Jobs that wait for their next attempt count if they keep their places
-- ($5). Of the jobs that have been running for longer than $8 seconds, which is longer than a job
-- waits in a worker, only the first $4 count: the others' workers have died. With $6, only jobs with these tickets change. The statement is idempotent, waits for no
-- lock, and locks in the order of the ids. It returns the jobs that it made runnable, and notifies
-- the clients of their queues as an insert does.
WITH unfinished AS (
    SELECT j.id, row_number() OVER (PARTITION BY k.key ORDER BY j.id) AS rank
    FROM unnest($1::text[], $2::bigint[]) AS k(key, after)
    CROSS JOIN LATERAL (
        SELECT s.id
        FROM unnest('{running,available,pending,scheduled,retryable}'::@river_job_state[]) AS of(state)
        CROSS JOIN LATERAL (
            SELECT j.id FROM @river_job j
            WHERE j.state = of.state AND j.metadata->'dibs'->>'key' = k.key AND j.id > k.after AND j.finalized_at IS NULL
                AND j.metadata->'dibs' ? 'ticket'
                AND (j.state <> 'running' OR coalesce(j.attempted_at, now()) > now() - make_interval(secs => $8::float8))
                AND (j.state IN ('running', 'available', 'pending') OR j.state = 'scheduled' AND j.metadata->'dibs_parked' = 'true' OR $5::boolean)
            ORDER BY j.id LIMIT $3::int
        ) s
        UNION ALL (
            SELECT j.id FROM @river_job j
            WHERE j.state = 'running' AND j.metadata->'dibs'->>'key' = k.key AND j.id > k.after AND j.finalized_at IS NULL
                AND j.metadata->'dibs' ? 'ticket' AND j.attempted_at <= now() - make_interval(secs => $8::float8)
            ORDER BY j.id LIMIT $4::int
        )
        ORDER BY id LIMIT $3::int
    ) j
), chosen AS (
    SELECT j.id
    FROM unfinished u JOIN @river_job j ON j.id = u.id
    WHERE (j.state = 'pending' OR j.state = 'scheduled' AND j.metadata->'dibs_parked' = 'true' AND u.rank <= $4::int)
        AND ($6::text[] IS NULL OR j.metadata->'dibs'->>'ticket' = ANY ($6))
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
), promoted AS (
    -- The job goes before jobs of other keys that were inserted later.
    UPDATE @river_job j SET state = 'available', scheduled_at = least(j.scheduled_at, j.created_at),
        metadata = CASE WHEN j.metadata ? 'dibs_parked' THEN j.metadata || '{"dibs_parked": false}' ELSE j.metadata END
    FROM chosen c WHERE j.id = c.id
    RETURNING j.id, j.queue
), notified AS (
    SELECT pg_notify(concat(coalesce(nullif($7::text, ''), current_schema()), '.river_insert'), json_build_object('queue', q.queue)::text)
    FROM (SELECT DISTINCT queue FROM promoted) q
)
SELECT p.id FROM promoted p WHERE (SELECT count(*) FROM notified) > 0
