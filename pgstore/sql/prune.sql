-- Sweeping out what has ended.

-- forget_keys deletes rows of keys of which nothing is known, locked before. What
-- their fences were, the store goes on knowing: of all deleted ones the highest.
CREATE OR REPLACE FUNCTION @forget_keys(p_k bytea[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    highest bigint;
BEGIN
    WITH gone AS (
        DELETE FROM @key t WHERE t.k = ANY (p_k) AND t.token IS NULL AND NOT t.busy
        RETURNING t.fence
    )
    SELECT max(g.fence) INTO highest FROM gone g;
    UPDATE @meta m SET fence = highest WHERE m.fence < highest;
END $$;

-- prune_records removes up to so many records that have ended, the oldest first, and
-- returns how many it was. Keys that somebody is at are left for later.
CREATE OR REPLACE FUNCTION @prune_records(p_limit integer) RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    ended bytea[];
BEGIN
    PERFORM @begin_verb();
    SELECT array_agg(l.k) INTO ended FROM (
        SELECT t.k FROM @key t WHERE t.rec_ends <= moment ORDER BY t.rec_ends LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) l;
    IF ended IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM @forget_keys(ended);
    UPDATE @key t SET rec_token = NULL, rec_written = NULL, rec_ends = NULL, rec_fingerprint = NULL, rec_data = NULL
    WHERE t.k = ANY (ended);
    RETURN cardinality(ended);
END $$;

-- sweep goes through some pages of @key. It forgets keys that nobody has used for
-- that long, lets time pass for those where something may have ended, and removes
-- up to so many places and abandoned attempts. It returns the page to go on from,
-- NULL at the end, and how many it removed.
CREATE OR REPLACE FUNCTION @sweep(p_page bigint, p_pages integer, p_age interval, p_limit integer, OUT next_page bigint, OUT removed integer)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    pages bigint := pg_relation_size('@key') / current_setting('block_size')::bigint;
    idle bytea[];
    used bytea[];
    one bytea;
    n integer;
    abandons boolean;
    st @state;
BEGIN
    PERFORM @begin_verb();
    removed := 0;
    SELECT array_agg(l.k) FILTER (WHERE l.idle), array_agg(l.k) FILTER (WHERE NOT l.idle) INTO idle, used FROM (
        SELECT t.k, t.token IS NULL AND NOT t.busy AS idle FROM @key t
        WHERE t.ctid >= ('(' || p_page || ',0)')::tid AND t.ctid < ('(' || p_page + p_pages || ',0)')::tid
            AND (t.token IS NULL AND NOT t.busy AND t.rec_ends IS NULL AND t.since <= moment - p_age
                OR t.ends <= moment OR t.busy AND t.permits > 1
                OR t.queued AND (t.token IS NULL OR EXISTS (SELECT FROM @waiter w WHERE w.k = t.k AND w.kind < 3 AND w.ends <= moment))
                OR NOT t.lost_once AND t.lost_ends + interval '24 hours' <= moment)
        FOR UPDATE SKIP LOCKED
    ) l;
    IF idle IS NOT NULL THEN
        PERFORM @forget_keys(idle);
    END IF;
    IF used IS NOT NULL THEN
        FOREACH one IN ARRAY used LOOP
            IF removed >= p_limit THEN
                next_page := p_page; -- there may be more on it
                RETURN;
            END IF;
            st := @load(one);
            DELETE FROM @waiter t WHERE t.k = one AND t.seq IN (
                SELECT w.seq FROM @waiter w WHERE w.k = one AND w.kind < 3 AND w.ends <= st.now LIMIT p_limit - removed);
            GET DIAGNOSTICS n = ROW_COUNT;
            removed := removed + n;
            abandons := (st.lost).token IS NOT NULL;
            IF n > 0 AND removed >= p_limit AND abandons THEN
                next_page := p_page; -- what else there is counts for the next
                RETURN;
            END IF;
            st := @advance(st);
            PERFORM @store(st);
            IF abandons AND (st.lost).token IS NULL THEN
                removed := removed + 1;
            END IF;
        END LOOP;
    END IF;
    IF p_page + p_pages < pages THEN
        next_page := p_page + p_pages;
    END IF;
END $$;
