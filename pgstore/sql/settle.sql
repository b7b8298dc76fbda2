-- Renewals and settlements.

-- lock_keys locks the rows of keys, in their order, and returns those that there
-- are.
CREATE OR REPLACE FUNCTION @lock_keys(p_k bytea[]) RETURNS bytea[] LANGUAGE plpgsql AS $$
DECLARE
    locked bytea[];
BEGIN
    SELECT array_agg(l.k) INTO locked FROM (
        SELECT t.k FROM (SELECT DISTINCT u.k FROM unnest(p_k) AS u (k)) d JOIN @key t ON t.k = d.k
        ORDER BY t.k FOR UPDATE OF t
    ) l;
    RETURN locked;
END $$;

-- stuck returns which of these keys somebody else has locked.
CREATE OR REPLACE FUNCTION @stuck(p_k bytea[]) RETURNS SETOF bytea LANGUAGE plpgsql AS $$
DECLARE
    free bytea[];
BEGIN
    SELECT array_agg(l.k) INTO free FROM (
        SELECT t.k FROM @key t WHERE t.k = ANY (p_k) FOR UPDATE SKIP LOCKED
    ) l;
    RETURN QUERY SELECT t.k FROM @key t WHERE t.k = ANY (p_k) AND t.k <> ALL (coalesce(free, ARRAY[]::bytea[]));
END $$;

-- renew makes leases last longer. It returns which of them did; progress that is
-- NULL is left as it is.
CREATE OR REPLACE FUNCTION @renew(p_k bytea[], p_token bytea[], p_ttl bigint[], p_progress bytea[])
RETURNS SETOF integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment timestamptz;
    r record;
BEGIN
    PERFORM @begin_verb();
    PERFORM @lock_keys(p_k);
    moment := clock_timestamp();
    FOR r IN
        WITH u AS MATERIALIZED (
            SELECT u.k, u.token, u.i, u.progress, moment + @lasting(u.ttl) AS ends
            FROM unnest(p_k, p_token, p_ttl, p_progress) WITH ORDINALITY AS u (k, token, ttl, progress, i)
        ), one AS (
            UPDATE @key t SET ends = u.ends, saved = t.saved OR u.progress IS NOT NULL, busy = t.busy OR u.progress IS NOT NULL
            FROM u WHERE t.k = u.k AND t.token = u.token AND NOT t.offered AND t.ends > moment
            RETURNING u.k, u.token
        ), many AS (
            UPDATE @holder t SET ends = u.ends
            FROM u WHERE t.k = u.k AND t.token = u.token AND NOT t.offered AND t.ends > moment
            RETURNING u.k, u.token
        ), saves AS (
            UPDATE @key t SET saved = true
            FROM u, many m WHERE m.k = u.k AND m.token = u.token AND t.k = u.k AND u.progress IS NOT NULL
        )
        SELECT u.i, u.k, u.token, u.progress FROM u WHERE (u.k, u.token) IN (SELECT * FROM one UNION ALL SELECT * FROM many)
    LOOP
        IF r.progress IS NOT NULL THEN
            INSERT INTO @progress AS t (k, token, data) VALUES (r.k, r.token, r.progress)
            ON CONFLICT (k, token) DO UPDATE SET data = excluded.data;
        END IF;
        RETURN NEXT r.i;
    END LOOP;
END $$;

-- settle_one ends one lease or gives up one place, and reports whether the token
-- had either. later says that whoever waits is seen to afterwards.
CREATE OR REPLACE FUNCTION @settle_one(
    p_k bytea, p_token bytea, p_outcome smallint, p_retention interval, p_data bytea, later boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    st @state := @load(p_k);
    at integer;
    by_whom integer;
    h @lease;
    p @waiter;
    done boolean := true;
BEGIN
    IF st.k IS NULL THEN
        RETURN false;
    END IF;
    st := @advance(st);
    at := @holder_at(st.holders, p_token);
    h := st.holders[at];
    IF at IS NOT NULL AND NOT h.offered THEN
        IF p_outcome = 1 THEN
            st := @write_record(st, p_token, h.fingerprint, p_data, p_retention);
            IF st.queued AND NOT later THEN
                PERFORM @answer_all(st);
            END IF;
        END IF;
        st := @take_out(st, at);
        IF p_outcome = 2 THEN
            st := @abandon(st, h, st.now);
        ELSIF p_outcome = 3 THEN
            st := @undo(st, h);
        ELSE
            st := @clean(st, p_token);
            IF h.seq IS NOT NULL THEN
                PERFORM @give_up(st.k, h.seq);
            END IF;
        END IF;
        IF st.queued AND NOT later THEN
            st := @hand_over(st);
        END IF;
    ELSIF p_outcome = 1 THEN
        -- Who does not know that it holds the key has nothing to keep: this was sent
        -- twice, or comes too late.
        done := st.rec_token = p_token AND st.rec_ends > st.now;
    ELSIF at IS NOT NULL THEN -- it gives up a turn that it may not know of
        st := @take_out(st, at);
        IF st.queued THEN
            st := @hand_over(st);
        END IF;
    ELSE
        by_whom := @taken_by(st, p_token);
        IF by_whom IS NOT NULL THEN -- its place is given up, and the lease stays
            h := st.holders[by_whom];
            PERFORM @give_up(st.k, h.seq);
            h.seq := NULL;
            st := @put(st, by_whom, h);
        ELSE
            p := @place(st, p_token);
            done := p.seq IS NOT NULL;
            IF done THEN
                DELETE FROM @waiter t WHERE t.k = st.k AND t.seq = p.seq;
                st := @hand_over(st);
            END IF;
        END IF;
    END IF;
    PERFORM @store(st);
    RETURN coalesce(done, false);
END $$;

-- settle ends leases and gives up places. It returns which of them it did.
CREATE OR REPLACE FUNCTION @settle(
    p_k bytea[], p_token bytea[], p_outcome smallint[], p_retention bigint[], p_data bytea[]
) RETURNS SETOF integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment timestamptz;
    locked bytea[];
    done boolean[];
    n integer;
BEGIN
    PERFORM @begin_verb();
    locked := @lock_keys(p_k);
    IF locked IS NULL THEN -- no key has a row
        RETURN;
    END IF;
    moment := clock_timestamp();
    -- The plain leases, of which nothing stays but the record.
    FOR n IN
        WITH u AS MATERIALIZED (
            SELECT u.*, u.outcome = 1 AS keeps
            FROM unnest(p_k, p_token, p_outcome, p_retention, p_data) WITH ORDINALITY AS u (k, token, outcome, retention, data, i)
        )
        UPDATE @key t SET
            token = NULL, attempt = NULL, ends = NULL, offered = NULL, once = NULL, inherits = NULL,
            fingerprint = NULL, owner = NULL,
            rec_token = CASE WHEN u.keeps THEN u.token ELSE t.rec_token END,
            rec_written = CASE WHEN u.keeps THEN moment ELSE t.rec_written END,
            rec_ends = CASE WHEN u.keeps THEN moment + @lasting(u.retention) ELSE t.rec_ends END,
            rec_fingerprint = CASE WHEN u.keeps THEN t.fingerprint ELSE t.rec_fingerprint END,
            rec_data = CASE WHEN u.keeps THEN u.data ELSE t.rec_data END
        FROM u
        WHERE t.k = u.k AND t.token = u.token AND NOT t.busy AND t.ends > moment AND u.outcome <> 2
        RETURNING u.i
    LOOP
        done[n] := true;
        RETURN NEXT n;
    END LOOP;
    -- A key whose row is new since the locks were taken is not among them.
    FOR n IN 1 .. cardinality(p_k) LOOP
        IF done[n] IS NULL AND p_k[n] = ANY (locked) AND (
            p_outcome[n] = 0 AND @pass_on(p_k[n], p_token[n], moment)
            OR @settle_one(p_k[n], p_token[n], p_outcome[n], @lasting(p_retention[n]), p_data[n], false)
        ) THEN
            RETURN NEXT n;
        END IF;
    END LOOP;
END $$;
