-- Places that are reserved in a transaction of the application.

-- reserve_in notes down, for the end of the transaction, which places it reserves. It
-- locks nothing of a key, so that a transaction may stay open for as long as it likes.
-- It is called with the application's user, search_path and settings, and needs
-- neither its rights nor those. It does nothing and returns 1 when the store is
-- another one, and 2 when the transaction has a snapshot of its own, which does not
-- see the queue that the places are to be at the end of.
CREATE OR REPLACE FUNCTION @reserve_in(p_store text, p_most integer, p_claims text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RETURN 2;
    END IF;
    IF NOT EXISTS (SELECT FROM @meta m WHERE m.id::text = p_store) THEN
        RETURN 1;
    END IF;
    SET CONSTRAINTS @pending_taken DEFERRED; -- whatever the application has set for ALL
    INSERT INTO @pending (tx, n, claims)
    SELECT pg_current_xact_id(),
        (SELECT coalesce(max(p.n), 0) + 1 FROM @pending p WHERE p.tx = pg_current_xact_id()),
        array_agg(ROW(c.i, decode(c.k, 'hex'), 2, decode(c.token, 'hex'), NULL, NULL, @lasting(c.place), @lasting(c.hold),
            c.permits, @lasting(c.max_age), c.once, decode(c.fingerprint, 'hex'), decode(c.owner, 'hex'),
            NULL, false, p_most)::@ask ORDER BY c.i)
    FROM json_to_recordset(p_claims::json) AS c (i integer, k text, token text, place bigint, hold bigint,
        permits integer, max_age bigint, once boolean, fingerprint text, owner text);
    RETURN 0;
END $$;
REVOKE EXECUTE ON FUNCTION @reserve_in FROM PUBLIC;

-- commit_places takes the places that the transaction has reserved, and locks the key
-- p_also, which may be NULL, in its order among theirs. One that cannot be had,
-- because the key's permits differ, its queue is full or such, is not taken: what the
-- transaction does counts for more than an order.
CREATE OR REPLACE FUNCTION @commit_places(p_also bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    claims @ask[];
    these @ask[] := ARRAY[]::@ask[];
    cold boolean := current_setting('dibs.warm', true) IS DISTINCT FROM '@pending';
    moment timestamptz;
    joined integer;
    q @ask;
    st @state;
    refused integer := 0;
BEGIN
    WITH gone AS (
        DELETE FROM @pending p WHERE p.tx = pg_current_xact_id() RETURNING p.n, p.claims
    )
    SELECT array_agg(c ORDER BY c.k, g.n, c.i) INTO claims FROM gone g, unnest(g.claims) AS c;
    IF claims IS NULL THEN
        RETURN;
    END IF;
    -- It ends with the caller, a function that has a setting of its own for it.
    PERFORM set_config('lock_timeout', '10s', true);
    -- From here to the end of COMMIT the keys are locked, and whoever reserves places
    -- of them too waits. So the usual case is two statements; and a session that is new
    -- makes them for none before, as planning takes ten times as long as the rest.
    LOOP
        IF NOT cold THEN
            these := claims;
        END IF;
        INSERT INTO @key AS t (k, fence, permits, busy, queued, saved, since, abandoned)
        SELECT d.k, 0, max(d.permits), bool_or(d.joins), bool_or(d.joins), false, clock_timestamp(), 0 FROM (
            SELECT c.k, c.permits, true AS joins FROM unnest(these) AS c
            UNION ALL SELECT p_also, 1, false WHERE p_also IS NOT NULL AND NOT cold
        ) d GROUP BY d.k ORDER BY d.k
        ON CONFLICT (k) DO UPDATE SET
            permits = CASE WHEN t.token IS NULL AND NOT t.busy THEN excluded.permits ELSE t.permits END,
            busy = true, queued = true
        WHERE NOT t.queued AND excluded.queued; -- the others are merely locked
        moment := clock_timestamp();
        -- (Written so that it can only be planned by way of the indexes.)
        WITH c AS MATERIALIZED (
            SELECT c.*, coalesce(w.last, 0) + row_number() OVER (PARTITION BY c.k ORDER BY c.ord) AS seq,
                row_number() OVER (PARTITION BY c.k, c.token) AS mention,
                bool_and(t.permits = c.permits AND t.lost_token IS NULL
                    AND (t.token IS NULL OR t.token <> c.token AND t.ends > moment AND (t.fingerprint = c.fingerprint) IS NOT FALSE)
                    AND (t.permits = 1 OR c.fingerprint IS NULL
                        AND (SELECT h.fence FROM @holder h WHERE h.k = c.k AND h.token = c.token) IS NULL)
                    AND (c.max_age = interval '0' OR t.rec_ends IS NULL OR t.rec_ends <= moment)
                    AND (SELECT o.seq FROM @waiter o WHERE o.k = c.k AND o.token = c.token) IS NULL
                    AND coalesce(w.last - w.first + 1, 0) + cardinality(these) <= c.most) OVER () AS plain
            FROM unnest(these) WITH ORDINALITY AS c (i, k, mode, token, redeems, ttl, place, hold, permits, max_age, once,
                    fingerprint, owner, process, tells, most, ord)
                JOIN @key t ON t.k = c.k,
                LATERAL (SELECT
                    (SELECT o.seq FROM @waiter o WHERE o.k = c.k ORDER BY o.seq LIMIT 1) AS first,
                    (SELECT o.seq FROM @waiter o WHERE o.k = c.k ORDER BY o.seq DESC LIMIT 1) AS last) w
        )
        INSERT INTO @waiter (k, seq, token, kind, parked, ends, lasts, hold, pressed, once, max_age, process, tells, fingerprint, owner)
        SELECT c.k, c.seq, c.token, 1, false, moment + c.place, c.place, c.hold, false, c.once, c.max_age, NULL, false, c.fingerprint, c.owner
        FROM c WHERE c.plain AND NOT EXISTS (SELECT FROM c WHERE c.mention > 1);
        GET DIAGNOSTICS joined = ROW_COUNT;
        EXIT WHEN NOT cold;
        PERFORM set_config('dibs.warm', '@pending', false);
        cold := false;
    END LOOP;
    IF joined > 0 THEN
        RETURN;
    END IF;
    FOREACH q IN ARRAY claims LOOP
        st := @decide(@load(q.k), q);
        PERFORM @store(st);
        IF (st.answer).queued IS NOT TRUE THEN
            refused := refused + 1;
        END IF;
    END LOOP;
    IF refused > 0 THEN
        RAISE WARNING 'dibs: % of the % places that the transaction reserved were not taken: the queue is full, or the key is in use for something else', refused, cardinality(claims)
            USING HINT = 'Who redeems such a place joins at the end of the queue.';
    END IF;
END $$;

-- take_pending is called just before a transaction that has reserved places commits,
-- for each row that it has in @pending. The first one is for all.
CREATE OR REPLACE FUNCTION @take_pending() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF current_query() ~* '^\s*prepare\s+transaction' THEN
        RAISE EXCEPTION 'dibs: a transaction that reserves places cannot be prepared: nobody would get at the keys until it is committed'
            USING ERRCODE = 'feature_not_supported', HINT = 'Commit it in one phase, or reserve the places outside of it.';
    END IF;
    BEGIN
        PERFORM @commit_places(NULL);
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION 'dibs: the places that the transaction reserved could not be taken: somebody keeps the row of a key locked for long'
            USING ERRCODE = 'lock_not_available',
            HINT = 'Try it again. Look for a transaction that is open for long: SELECT * FROM pg_stat_activity WHERE state = ''idle in transaction''.';
    END;
    RETURN NULL;
END $$;

-- At the end of the transaction, and also where triggers are off for the session.
CREATE CONSTRAINT TRIGGER @@_pending_taken AFTER INSERT ON @pending
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION @take_pending();
ALTER TABLE @pending ENABLE ALWAYS TRIGGER @@_pending_taken;
