-- Functions for transactions of the application. Its user needs no rights on the tables, and its
-- search_path and settings do not matter.

-- settle_in ends the lease of a key together with the transaction that calls it. If the token
-- does not hold the key, it raises an error, so that the COMMIT in the same message rolls back.
-- It raises another error if the run ended its transaction and began a new one. It recognizes
-- the transaction by the variable dibs.run if p_marked, and otherwise because it is DEFERRABLE,
-- which has no effect in a transaction that writes.
--
-- If other tables have rows of the key, the lease stays and is marked as settled. The next
-- transaction on the key does the rest, because this one may have a snapshot and not see these
-- rows. settle_in wakes one waiter of each process. It returns whether there may be waiters that
-- it does not see.
CREATE FUNCTION @settle_in(p_k bytea, p_token bytea, p_keeps boolean, p_retention bigint, p_data bytea, p_marked boolean)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    t record;
    moment bigint;
    print bytea;
    many boolean := false;
BEGIN
    IF current_setting(CASE WHEN p_marked THEN 'dibs.run' ELSE 'transaction_deferrable' END, true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'dibs: this is not the transaction that was begun for the run' USING ERRCODE = 'DIBS2';
    END IF;
    IF NOT p_marked AND current_setting('default_transaction_deferrable') = 'on' THEN
        RAISE EXCEPTION 'dibs: all transactions are DEFERRABLE here, so this one must be marked' USING ERRCODE = 'DIBS3';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT x.busy, x.token, x.ends, x.fingerprint INTO t FROM @key x WHERE x.k = p_k FOR UPDATE;
    moment := @now();
    print := t.fingerprint;
    IF t.token IS DISTINCT FROM p_token OR t.ends <= moment THEN
        UPDATE @holder h SET ends = 0
        WHERE h.k = p_k AND h.token = p_token AND NOT h.abandoned AND h.ends > moment
        RETURNING h.fingerprint, true INTO print, many;
        IF many IS NOT TRUE THEN
            RAISE EXCEPTION 'dibs: the lease is lost' USING ERRCODE = 'DIBS1';
        END IF;
    END IF;
    UPDATE @key x SET
        ends = CASE WHEN many THEN x.ends ELSE 0 END,
        token = CASE WHEN many OR x.busy THEN x.token ELSE '' END,
        rec_token = CASE WHEN p_keeps THEN p_token ELSE x.rec_token END,
        rec_written = CASE WHEN p_keeps THEN moment ELSE x.rec_written END,
        rec_ends = CASE WHEN p_keeps THEN moment + p_retention ELSE x.rec_ends END,
        rec_fingerprint = CASE WHEN p_keeps THEN print ELSE x.rec_fingerprint END,
        rec_data = CASE WHEN p_keeps THEN p_data ELSE x.rec_data END,
        listed = NOT p_keeps AND x.rec_ends = 0 OR x.token <> '' AND (many OR x.busy)
    WHERE x.k = p_k;
    IF t.busy THEN
        PERFORM pg_notify(@channel(n.process), encode(n.token, 'hex')) FROM (
            SELECT DISTINCT ON (w.process) w.process, w.token FROM (
                SELECT * FROM @waiter w WHERE w.k = p_k AND w.kind = 0 AND w.process <> 0 AND w.ends > moment ORDER BY w.seq LIMIT 64
            ) w ORDER BY w.process, w.seq
        ) n;
    END IF;
    RETURN t.busy AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted');
END $$;
REVOKE EXECUTE ON FUNCTION @settle_in FROM PUBLIC;

-- reserve_in reserves places, which exist when the transaction commits. It locks no rows of a
-- key. If p_store is not the ID of this store, it does nothing and returns false.
CREATE FUNCTION @reserve_in(p_store text, p_claims text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment bigint := @now();
    r record;
BEGIN
    IF NOT EXISTS (SELECT FROM @meta m WHERE m.id::text = p_store) THEN
        RETURN false;
    END IF;
    FOR r IN SELECT * FROM json_to_recordset(p_claims::json) AS c (k text, token text, stay bigint, hold bigint, owner text) LOOP
        INSERT INTO @waiter (k, seq, token, kind, ends, owner, ttl, permits, weight, once, max_age, process, fingerprint, hold, asked)
        VALUES (decode(r.k, 'hex'), nextval('@number'), decode(r.token, 'hex'), 1, moment + r.stay, decode(r.owner, 'hex'),
            0, 0, 0, false, 0, 0, '', r.hold, moment)
        ON CONFLICT (token, k) DO UPDATE SET ends = excluded.ends, hold = excluded.hold, asked = excluded.asked;
    END LOOP;
    RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION @reserve_in FROM PUBLIC;
