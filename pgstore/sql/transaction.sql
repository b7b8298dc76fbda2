-- Settling in a transaction of the application.

-- settle_in ends the lease of a key, with what the transaction does and not without
-- it. Whoever does not hold the key is told so by an error, so that the COMMIT that
-- came along with the call rolls back. One that was ended since it began, and begun
-- anew, has lost what was done under the lease: it is told by what is set for it
-- alone, a variable if p_marked, and otherwise that it was begun as DEFERRABLE, which
-- means nothing in a transaction that writes.
--
-- It is called with the application's user, search_path and settings, and needs
-- neither its rights nor those. It returns whether catch_up is to be called
-- afterwards: a transaction with a snapshot of its own does not see who has come to
-- wait since, and must neither answer nor grant for what it sees.
CREATE OR REPLACE FUNCTION @settle_in(
    p_k bytea, p_token bytea, p_outcome smallint, p_retention bigint, p_data bytea, p_marked boolean
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    later boolean := current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted');
    r record;
BEGIN
    IF current_setting(CASE WHEN p_marked THEN 'dibs.run' ELSE 'transaction_deferrable' END, true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'dibs: this is not the transaction that was begun for the run' USING ERRCODE = 'DIBS2';
    END IF;
    IF NOT p_marked AND current_setting('default_transaction_deferrable') = 'on' THEN
        RAISE EXCEPTION 'dibs: all transactions are DEFERRABLE here, so that this one is to be marked' USING ERRCODE = 'DIBS3';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF NOT later THEN -- at those levels there are none
        PERFORM @commit_places(p_k); -- all keys in one order
    END IF;
    SELECT t.queued, t.busy, t.ends INTO r FROM @key t
    WHERE t.k = p_k AND CASE t.permits
        WHEN 1 THEN t.token = p_token AND NOT t.offered
        ELSE EXISTS (SELECT FROM @holder h WHERE h.k = p_k AND h.token = p_token AND NOT h.offered)
    END
    FOR UPDATE;
    IF NOT r.busy AND r.ends > clock_timestamp() AND p_outcome <> 2 THEN
        -- A plain lease, of which nothing stays but the record, as in settle.
        UPDATE @key t SET
            token = NULL, attempt = NULL, ends = NULL, offered = NULL, once = NULL, inherits = NULL,
            fingerprint = NULL, owner = NULL,
            rec_token = CASE WHEN p_outcome = 1 THEN t.token ELSE t.rec_token END,
            rec_written = CASE WHEN p_outcome = 1 THEN clock_timestamp() ELSE t.rec_written END,
            rec_ends = CASE WHEN p_outcome = 1 THEN clock_timestamp() + @lasting(p_retention) ELSE t.rec_ends END,
            rec_fingerprint = CASE WHEN p_outcome = 1 THEN t.fingerprint ELSE t.rec_fingerprint END,
            rec_data = CASE WHEN p_outcome = 1 THEN p_data ELSE t.rec_data END
        WHERE t.k = p_k;
        RETURN false;
    END IF;
    IF NOT FOUND OR NOT @settle_one(p_k, p_token, p_outcome, @lasting(p_retention), p_data, later) THEN
        RAISE EXCEPTION 'dibs: the lease is lost' USING ERRCODE = 'DIBS1';
    END IF;
    RETURN r.queued AND later;
END $$;
REVOKE EXECUTE ON FUNCTION @settle_in FROM PUBLIC;

-- catch_up sees to those who wait for a key that was settled without that.
CREATE OR REPLACE FUNCTION @catch_up(p_k bytea) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    st @state;
BEGIN
    PERFORM @begin_verb();
    PERFORM FROM @key t WHERE t.k = p_k FOR UPDATE;
    st := @load(p_k);
    IF st.k IS NULL OR NOT st.queued THEN
        RETURN;
    END IF;
    IF st.rec_ends > st.now THEN
        PERFORM @answer_all(st);
    END IF;
    st := @advance(st);
    PERFORM @store(st);
END $$;
