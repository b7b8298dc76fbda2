-- What package engine decides, for callers that have no engine: claims and settlements by SQL that
-- are not plain. Each function is about one key, whose row advance has locked. They serve no queue: they wake its
-- waiters, and a waiter of a process in Go has the engine serve it.

-- lease has all leases, wherever they are, and the abandoned ones.
CREATE OR REPLACE VIEW @lease AS
    SELECT k, token, false AS abandoned, fence, attempt, since, ends, once, seq, inherits, 1::bigint AS permits, 1::bigint AS weight, fingerprint, owner
    FROM @key WHERE token <> ''
    UNION ALL SELECT * FROM @holder;

-- end_lease ends a lease that was settled (0 and 1), abandoned at that time (2) or undone (3).
CREATE OR REPLACE FUNCTION @end_lease(l @lease, p_outcome bigint, ended bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    a record;
BEGIN
    UPDATE @key x SET token = '' WHERE x.k = l.k AND x.token = l.token;
    DELETE FROM @holder h WHERE h.k = l.k AND h.token = l.token AND NOT h.abandoned;
    IF p_outcome = 3 THEN
        RETURN;
    END IF;
    DELETE FROM @holder h WHERE h.k = l.k AND h.abandoned RETURNING h.attempt, h.inherits INTO a;
    IF p_outcome = 2 THEN
        INSERT INTO @holder VALUES (l.k, l.token, true, l.fence, coalesce(a.attempt, 0) + 1, l.since, ended, l.once, 0,
            CASE WHEN EXISTS (SELECT FROM @progress g WHERE g.k = l.k AND g.fence = l.fence) THEN l.fence ELSE coalesce(a.inherits, 0) END,
            l.permits, l.weight, l.fingerprint, l.owner);
    ELSE
        PERFORM pg_notify(@channel(w.process), encode(w.token, 'hex')) FROM @waiter w WHERE w.k = l.k AND w.seq = l.seq AND w.kind = 0 AND w.process <> 0;
        DELETE FROM @waiter w WHERE w.k = l.k AND w.seq = l.seq;
    END IF;
END $$;

-- advance locks the row of a key, which may be new. It ends what has expired, and returns the time.
CREATE OR REPLACE FUNCTION @advance(p_k bytea) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    moment bigint;
    l @lease;
BEGIN
    INSERT INTO @key AS x (k, fence) VALUES (p_k, 0) ON CONFLICT (k) DO UPDATE SET fence = x.fence WHERE false;
    PERFORM FROM @key x WHERE x.k = p_k FOR UPDATE;
    moment := @now();
    DELETE FROM @waiter w WHERE w.k = p_k AND w.ends <= moment;
    IF FOUND THEN
        PERFORM @wake(p_k, false);
    END IF;
    FOR l IN SELECT y.* FROM @lease y WHERE y.k = p_k AND NOT y.abandoned AND y.ends <= moment ORDER BY y.ends, y.fence LOOP
        PERFORM @end_lease(l, CASE l.ends WHEN 0 THEN 0 ELSE 2 END, l.ends); -- 0: a transaction of the application settled it
        PERFORM @wake(p_k, l.ends = 0 OR l.once);
    END LOOP;
    DELETE FROM @holder h WHERE h.k = p_k AND h.abandoned AND NOT h.once AND h.ends + 86400000000 <= moment;
    RETURN moment;
END $$;

-- close deletes progress that no lease inherits, and notes what the other tables have of the key.
CREATE OR REPLACE FUNCTION @close(p_k bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    queued boolean := EXISTS (SELECT FROM @waiter w WHERE w.k = p_k);
BEGIN
    DELETE FROM @progress g WHERE g.k = p_k AND NOT EXISTS (SELECT FROM @lease l WHERE l.k = p_k AND g.fence IN (l.fence, l.inherits));
    UPDATE @key x SET listed = x.rec_ends = 0 OR x.token <> '', idle_since = CASE WHEN queued THEN x.idle_since ELSE 0 END,
        busy = queued OR EXISTS (SELECT FROM @holder h WHERE h.k = p_k) OR EXISTS (SELECT FROM @progress g WHERE g.k = p_k)
    WHERE x.k = p_k;
END $$;

-- claim_one answers a claim.
CREATE OR REPLACE FUNCTION @claim_one(
    p_k bytea, p_mode bigint, p_token bytea, p_ttl bigint, p_place_ttl bigint, p_max_age bigint, p_once boolean, p_fingerprint bytea, p_owner bytea,
    p_permits bigint, p_weight bigint, p_most bigint,
    OUT state bigint, OUT fence bigint, OUT remains bigint, OUT ahead bigint, OUT age bigint, OUT data bytea, OUT attempt bigint, OUT progress bytea
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moment bigint := @advance(p_k);
    t record; -- the key's row
    a record; -- its abandoned lease
    all_leases record;
    l @lease; -- of the token
    own @waiter; -- of the token
    f @waiter; -- the first place that blocks
    first boolean;
BEGIN
    SELECT x.fence, x.idle_since, x.rec_written, x.rec_ends, x.rec_fingerprint INTO t FROM @key x WHERE x.k = p_k;
    SELECT h.* INTO a FROM @holder h WHERE h.k = p_k AND h.abandoned;
    SELECT coalesce(bool_and(y.permits = p_permits), true) AND coalesce(sum(y.weight), 0) + p_weight <= p_permits AS room,
        bool_or(@differs(y.fingerprint, p_fingerprint)) AS clash, min(y.ends) AS ends, coalesce(array_agg(y.seq), '{}') AS seqs
    INTO all_leases FROM @lease y WHERE y.k = p_k AND NOT y.abandoned;
    SELECT w.* INTO f FROM @waiter w
    WHERE w.k = p_k AND w.kind <> 2 AND w.seq <> ALL (all_leases.seqs)
        AND NOT (w.kind = 1 AND w.grace > 0 AND t.idle_since > 0 AND greatest(t.idle_since, w.asked) + w.grace <= moment)
    ORDER BY w.seq, w.kind LIMIT 1;
    DELETE FROM @waiter w WHERE w.k = p_k AND w.kind = 1 AND w.seq <> ALL (all_leases.seqs) AND (f.k IS NULL OR w.seq < f.seq); -- their grace is over
    SELECT y.* INTO l FROM @lease y WHERE y.k = p_k AND y.token = p_token AND NOT y.abandoned;
    SELECT w.* INTO own FROM @waiter w WHERE w.token = p_token AND w.k = p_k;
    first := f.k IS NULL OR coalesce(own.seq <= f.seq, false);
    state := CASE
        WHEN l.k IS NOT NULL THEN 1
        WHEN all_leases.clash OR @differs(a.fingerprint, p_fingerprint) THEN 5
        WHEN p_max_age > 0 AND t.rec_ends > moment AND t.rec_written >= moment - p_max_age THEN CASE WHEN @differs(t.rec_fingerprint, p_fingerprint) THEN 5 ELSE 4 END
        WHEN a.once THEN 6
        WHEN all_leases.room AND first AND coalesce(own.seq <> ALL (all_leases.seqs), true) THEN 1
        ELSE 2 END;
    IF own.k IS NOT NULL AND l.k IS NULL AND state IN (1, 4, 5) THEN
        DELETE FROM @waiter w WHERE w.token = p_token AND w.k = p_k;
        PERFORM @wake(p_k, false);
    END IF;
    CASE state
        WHEN 1 THEN
            IF l.k IS NULL THEN
                SELECT coalesce(max(w.seq), 0) INTO l.seq FROM @waiter w WHERE w.k = p_k AND w.seq = own.seq; -- of the reserved place that it leaves
                UPDATE @key x SET fence = greatest(x.fence + 1, (SELECT m.fence + 1 FROM @meta m), moment), idle_since = 0 WHERE x.k = p_k RETURNING x.fence INTO l.fence;
                l := ROW(p_k, p_token, false, l.fence, coalesce(a.attempt, 0) + 1, moment, 0, p_once, l.seq, coalesce(a.inherits, 0), p_permits, p_weight, p_fingerprint, p_owner);
                IF p_permits > 1 THEN
                    INSERT INTO @holder VALUES (l.*);
                ELSE
                    UPDATE @key x SET token = l.token, attempt = l.attempt, since = l.since, once = l.once, seq = l.seq, inherits = l.inherits,
                        fingerprint = l.fingerprint, owner = l.owner
                    WHERE x.k = p_k;
                END IF;
            END IF;
            UPDATE @key x SET ends = moment + p_ttl WHERE x.k = p_k AND x.token = p_token;
            UPDATE @holder h SET ends = moment + p_ttl WHERE h.k = p_k AND h.token = p_token AND NOT h.abandoned;
            fence := l.fence;
            attempt := l.attempt;
            SELECT g.data INTO progress FROM @progress g WHERE g.k = p_k AND g.fence = l.inherits;
        WHEN 2 THEN
            UPDATE @key x SET idle_since = greatest(moment, 1) WHERE x.k = p_k AND x.idle_since = 0 AND all_leases.room AND NOT first AND f.kind = 1;
            SELECT count(DISTINCT w.seq) INTO ahead FROM @waiter w
            WHERE w.k = p_k AND w.kind <> 2 AND (own.k IS NULL OR w.seq < own.seq) AND w.seq <> ALL (all_leases.seqs);
            IF p_mode = 1 THEN
                IF own.k IS NULL AND ahead >= p_most THEN
                    RAISE EXCEPTION 'dibs: the queue of the key is full: % places already', ahead USING ERRCODE = 'DIBS5';
                END IF;
                PERFORM @place(p_k, own.seq, p_token, moment + p_place_ttl, p_owner, p_ttl, p_permits, p_weight, p_once, p_max_age, 0, p_fingerprint);
            END IF;
            fence := greatest(t.fence, moment - 1);
            remains := coalesce(all_leases.ends - moment, 0);
        WHEN 4 THEN
            SELECT greatest(moment - x.rec_written, 0), x.rec_ends - moment, x.rec_data INTO age, remains, data FROM @key x WHERE x.k = p_k;
        ELSE NULL;
    END CASE;
    PERFORM @close(p_k);
END $$;

-- settle_one ends a lease or gives up a place, and returns false if the token has neither.
CREATE OR REPLACE FUNCTION @settle_one(p_k bytea, p_token bytea, p_outcome bigint, p_retention bigint, p_data bytea) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := @advance(p_k);
    l @lease;
    done boolean := true;
BEGIN
    SELECT y.* INTO l FROM @lease y WHERE y.k = p_k AND y.token = p_token AND NOT y.abandoned;
    DELETE FROM @waiter w WHERE w.k = p_k AND w.token = p_token AND (w.kind = 2 OR l.k IS NULL AND p_outcome <> 1) RETURNING w.kind <> 2 INTO done;
    IF l.k IS NOT NULL THEN
        done := true;
        PERFORM @end_lease(l, p_outcome, moment);
        UPDATE @key x SET rec_token = p_token, rec_written = moment, rec_ends = moment + p_retention, rec_fingerprint = l.fingerprint, rec_data = p_data
        WHERE x.k = p_k AND p_outcome = 1;
    ELSIF p_outcome = 1 THEN
        done := EXISTS (SELECT FROM @key x WHERE x.k = p_k AND x.rec_token = p_token AND x.rec_ends > moment); -- it was sent twice
    END IF;
    PERFORM @wake(p_k, p_outcome = 1 OR l.once);
    PERFORM @close(p_k);
    RETURN coalesce(done, false);
END $$;
