-- sweep goes through some pages of @key, and passes over rows that are locked. It deletes rows of
-- keys that have not been used for p_age, and up to p_limit records that have expired. The highest
-- fence of the rows that it deletes is kept in @meta. It returns the keys with other rows that may
-- have expired, the number of records, and the next page, NULL at the end.
CREATE OR REPLACE FUNCTION @sweep(p_page bigint, p_pages bigint, p_age bigint, p_limit bigint, OUT next_page bigint, OUT used bytea[], OUT records bigint)
LANGUAGE plpgsql
SET lock_timeout = '2s' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment bigint := @begin_verb();
    ended bytea[];
    idle bytea[];
    highest bigint;
BEGIN
    SELECT array_agg(l.k) FILTER (WHERE l.used), (array_agg(l.k) FILTER (WHERE l.ended))[:p_limit], array_agg(l.k) FILTER (WHERE l.idle)
    INTO used, ended, idle FROM (
        SELECT t.k, t.token <> '' AND t.ends <= moment OR t.token = '' AND t.busy AS used, t.rec_ends BETWEEN 1 AND moment AS ended,
            t.token = '' AND NOT t.busy AS idle
        FROM @key t
        WHERE t.ctid >= ('(' || p_page || ',0)')::tid AND t.ctid < ('(' || p_page + p_pages || ',0)')::tid
            AND (t.token <> '' AND t.ends <= moment OR t.token = '' AND t.busy OR t.rec_ends BETWEEN 1 AND moment
                OR t.token = '' AND t.rec_ends = 0 AND t.since <= moment - p_age)
        FOR UPDATE SKIP LOCKED
    ) l;
    records := coalesce(cardinality(ended), 0);
    UPDATE @key t SET rec_token = '', rec_written = 0, rec_ends = 0, rec_fingerprint = '', rec_data = NULL, listed = true
    WHERE t.k = ANY (ended) AND (t.token <> '' OR t.busy);
    WITH gone AS (
        DELETE FROM @key t WHERE t.k = ANY (idle) AND (records < p_limit OR t.rec_ends = 0 OR t.k = ANY (ended)) RETURNING t.fence
    )
    SELECT max(g.fence) INTO highest FROM gone g;
    UPDATE @meta m SET fence = highest WHERE m.fence < highest;
    next_page := CASE
        WHEN records = p_limit THEN p_page -- the page may have more
        WHEN p_page + p_pages < pg_relation_size('@key') / current_setting('block_size')::bigint THEN p_page + p_pages
    END;
END $$;
