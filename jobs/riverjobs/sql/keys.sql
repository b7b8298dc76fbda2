-- Returns the keys with parked jobs of these kinds. It reads one job of each key.
WITH RECURSIVE parked AS (
    SELECT s.state, ''::text AS key FROM unnest('{pending,scheduled}'::@river_job_state[]) AS s(state)
    UNION ALL
    SELECT p.state, (
        SELECT j.metadata->'dibs'->>'key' FROM @river_job j
        WHERE j.state = p.state AND j.metadata->'dibs'->>'key' > p.key AND j.finalized_at IS NULL AND j.kind = ANY ($1::text[])
            AND j.metadata->'dibs' ? 'ticket'
            AND (j.state = 'pending' OR j.metadata->'dibs_parked' = 'true')
        ORDER BY j.metadata->'dibs'->>'key' LIMIT 1)
    FROM parked p WHERE p.key IS NOT NULL
)
SELECT DISTINCT key FROM parked WHERE key <> ''
