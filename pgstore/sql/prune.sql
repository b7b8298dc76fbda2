-- sweep goes through some pages of @key, as far as nobody is at the keys. It forgets those
-- that nobody has used for that long, and records that have ended, up to so many, and
-- returns the keys where something else may have ended, how many records it were, and the
-- page to go on from, NULL at the end. What the fences of keys were that it forgets, the
-- store goes on knowing: of all of them the highest.
CREATE FUNCTION @sweep(p_page bigint, p_pages bigint, p_age bigint, p_limit bigint, OUT next_page bigint, OUT used bytea[], OUT records bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
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
    UPDATE @key t SET rec_token = '', rec_written = 0, rec_ends = 0, rec_fingerprint = '', rec_data = NULL
    WHERE t.k = ANY (ended) AND (t.token <> '' OR t.busy);
    WITH gone AS (
        DELETE FROM @key t WHERE t.k = ANY (idle) AND (records < p_limit OR t.rec_ends = 0 OR t.k = ANY (ended)) RETURNING t.fence
    )
    SELECT max(g.fence) INTO highest FROM gone g;
    UPDATE @meta m SET fence = highest WHERE m.fence < highest;
    next_page := CASE
        WHEN records = p_limit THEN p_page -- there may be more on it
        WHEN p_page + p_pages < pg_relation_size('@key') / current_setting('block_size')::bigint THEN p_page + p_pages
    END;
END $$;
