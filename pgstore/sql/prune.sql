-- Sweeping out what has ended.

-- forget_keys deletes rows of keys of which nothing is known, locked before. What
-- their fences were, the store goes on knowing: of all deleted ones the highest.
CREATE FUNCTION @forget_keys(p_k bytea[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    highest bigint;
BEGIN
    WITH gone AS (
        DELETE FROM @key t WHERE t.k = ANY (p_k) AND t.token = '' AND NOT t.busy
        RETURNING t.fence
    )
    SELECT max(g.fence) INTO highest FROM gone g;
    UPDATE @meta m SET fence = highest WHERE m.fence < highest;
END $$;

-- prune_records removes up to so many records that have ended, the oldest first, and
-- returns how many it was. Keys that somebody is at are left for later.
CREATE FUNCTION @prune_records(p_limit bigint) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment bigint := @begin_verb();
    ended bytea[];
BEGIN
    SELECT array_agg(l.k) INTO ended FROM (
        SELECT t.k FROM @key t WHERE t.rec_ends > 0 AND t.rec_ends <= moment ORDER BY t.rec_ends LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) l;
    IF ended IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM @forget_keys(ended);
    UPDATE @key t SET rec_token = '', rec_written = 0, rec_ends = 0, rec_fingerprint = '', rec_data = NULL
    WHERE t.k = ANY (ended);
    RETURN cardinality(ended);
END $$;

-- sweep goes through some pages of @key. It forgets keys that nobody has used for
-- that long, and returns those where something may have ended, and the page to go on from,
-- NULL at the end.
CREATE FUNCTION @sweep(p_page bigint, p_pages bigint, p_age bigint, OUT next_page bigint, OUT used bytea[])
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment bigint := @begin_verb();
    pages bigint := pg_relation_size('@key') / current_setting('block_size')::bigint;
    idle bytea[];
BEGIN
    SELECT array_agg(l.k) FILTER (WHERE l.idle), array_agg(l.k) FILTER (WHERE NOT l.idle) INTO idle, used FROM (
        SELECT t.k, t.token = '' AND NOT t.busy AS idle FROM @key t
        WHERE t.ctid >= ('(' || p_page || ',0)')::tid AND t.ctid < ('(' || p_page + p_pages || ',0)')::tid
            AND (t.token = '' AND NOT t.busy AND t.rec_ends = 0 AND t.since <= moment - p_age
                OR t.token <> '' AND t.ends <= moment OR t.token = '' AND t.busy)
        FOR UPDATE SKIP LOCKED
    ) l;
    IF idle IS NOT NULL THEN
        PERFORM @forget_keys(idle);
    END IF;
    IF p_page + p_pages < pages THEN
        next_page := p_page + p_pages;
    END IF;
END $$;
