-- The statements of plain calls: leases of keys with one permit, their queue and their end.
-- They leave alone what is not plain, which package engine decides. Both agree.

CREATE OR REPLACE FUNCTION @now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- differs reports whether two fingerprints are there and differ.
CREATE OR REPLACE FUNCTION @differs(a bytea, b bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS
$$ SELECT a <> b AND a <> '' AND b <> '' $$;

-- channel returns the channel that a process listens on.
CREATE OR REPLACE FUNCTION @channel(process bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT '@@_' || to_hex(process) $$;

-- is_listening reports whether a process listens. Its connection holds the lock of its number
-- while it lives.
CREATE OR REPLACE FUNCTION @is_listening(process bigint) RETURNS boolean LANGUAGE sql VOLATILE AS
$$ SELECT NOT pg_try_advisory_xact_lock_shared(process) $$;

-- begin_verb checks the transaction of a call, and returns the time. A grant must not be lost in
-- a crash, and a call that waited for a lock must see what the last transaction wrote. The caller
-- sets lock_timeout.
CREATE OR REPLACE FUNCTION @begin_verb() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'dibs works at the isolation level read committed, not %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN @now();
END $$;

-- claim_all answers each claim by a row, in no order. The state of claims that are not plain is -1.
-- One statement takes the keys that are free, and locks the keys whose queue a claim joins, in
-- the order of the keys.
CREATE OR REPLACE FUNCTION @claim_all(
    p_k bytea[], p_mode bigint[], p_token bytea[], p_ttl bigint[], p_place_ttl bigint[],
    p_max_age bigint[], p_once boolean[], p_fingerprint bytea[], p_owner bytea[], p_process bigint, p_most bigint
) RETURNS TABLE (i bigint, state bigint, fence bigint, remains bigint, ahead bigint, age bigint, data bytea) LANGUAGE plpgsql
SET lock_timeout = '2s' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moment bigint := @begin_verb();
    mark bigint;
    base bigint; -- the fence of a key without a row
    grants boolean := false;
    replays boolean := false;
    r record;
    joins bigint[];
    n bigint;
BEGIN
    SELECT m.fence INTO STRICT mark FROM @meta m;
    base := greatest(mark + 1, moment);
    FOR r IN
        WITH c AS MATERIALIZED (
            SELECT c.*, t.ends AS held_until, t.fence AS last_fence, t.rec_written, t.rec_ends, t.rec_data,
                CASE
                    WHEN c.mode = 1 AND t.token <> '' AND t.token <> c.token AND t.ends > moment THEN 0
                    WHEN t.busy OR t.token <> '' AND (t.ends <= moment OR t.token = c.token) THEN -1
                    WHEN t.token <> '' AND @differs(t.fingerprint, c.fingerprint) THEN 5
                    WHEN t.rec_ends > moment AND c.max_age > 0 AND t.rec_written >= moment - c.max_age
                        THEN CASE WHEN @differs(t.rec_fingerprint, c.fingerprint) THEN 5 ELSE 4 END
                    WHEN EXISTS (SELECT FROM @waiter w WHERE w.k = c.k) THEN -1
                    WHEN t.token <> '' THEN 2
                    WHEN c.mode = 3 THEN 3
                    WHEN t.rec_ends > 0 THEN -1
                    ELSE 1
                END AS way
            FROM unnest(p_k, p_mode, p_token, p_ttl, p_max_age, p_once, p_fingerprint, p_owner)
                WITH ORDINALITY AS c (k, mode, token, ttl, max_age, once, fingerprint, owner, i)
            LEFT JOIN @key t ON t.k = c.k
        ), took AS (
            INSERT INTO @key AS t (k, fence, token, attempt, since, ends, once, fingerprint, owner)
            SELECT DISTINCT ON (c.k) c.k, CASE c.way WHEN 1 THEN base ELSE 0 END, CASE c.way WHEN 1 THEN c.token ELSE '' END,
                1, moment, moment + c.ttl, c.once, c.fingerprint, c.owner
            FROM c WHERE c.way IN (0, 1) ORDER BY c.k, c.i
            ON CONFLICT (k) DO UPDATE SET
                fence = greatest(t.fence + 1, excluded.fence), token = excluded.token, attempt = 1, since = excluded.since,
                ends = excluded.ends, once = excluded.once, seq = 0, inherits = 0, idle_since = 0,
                fingerprint = excluded.fingerprint, owner = excluded.owner
            WHERE excluded.token <> '' AND t.token = '' AND NOT t.busy AND t.rec_ends = 0
            RETURNING t.k, t.token, t.fence
        )
        -- Grants are looked up in a hash. Fences are looked up only if one is unusual because
        -- the clock was set back.
        SELECT c.*, CASE
            WHEN c.way <> 1 OR (c.k, c.token) NOT IN (SELECT g.k, g.token FROM took g) THEN NULL
            WHEN (SELECT max(g.fence) FROM took g) = base THEN base
            ELSE (SELECT g.fence FROM took g WHERE g.k = c.k)
        END AS got
        FROM c
    LOOP
        i := r.i;
        state := r.way;
        fence := r.got;
        remains := NULL; ahead := 0; age := NULL; data := NULL;
        CASE r.way
            WHEN 0 THEN
                joins := joins || r.i;
                CONTINUE;
            WHEN 1 THEN
                grants := grants OR r.got IS NOT NULL;
                IF r.got IS NULL THEN
                    state := -1; -- another claim was faster
                END IF;
            WHEN 2 THEN
                remains := r.held_until - moment;
                fence := greatest(r.last_fence, base - 1);
            WHEN 4 THEN
                age := moment - r.rec_written;
                remains := r.rec_ends - moment;
                data := r.rec_data;
                replays := true;
            ELSE NULL;
        END CASE;
        RETURN NEXT;
    END LOOP;
    IF grants THEN
        SELECT m.fence INTO mark FROM @meta m;
        IF mark >= base THEN
            RAISE EXCEPTION 'dibs: a key was forgotten meanwhile; try again' USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;
    -- What another transaction has committed can be seen before a synchronous standby has it, if
    -- the server crashed or an operator ended the wait. A COMMIT that writes waits for the standby.
    IF replays AND current_setting('synchronous_standby_names') <> '' THEN
        PERFORM pg_logical_emit_message(true, 'dibs', '');
    END IF;
    IF joins IS NOT NULL THEN
        moment := @now();
        FOREACH n IN ARRAY joins LOOP
            i := n; age := NULL; data := NULL;
            SELECT j.state, j.fence, j.remains, j.ahead INTO state, fence, remains, ahead FROM @join_queue(
                p_k[n], p_token[n], p_ttl[n], p_place_ttl[n], p_max_age[n], p_once[n], p_fingerprint[n], p_owner[n], p_process, p_most, moment
            ) AS j;
            RETURN NEXT;
        END LOOP;
    END IF;
END $$;

-- place gives a token a place, with a new number unless it has that number.
CREATE OR REPLACE FUNCTION @place(
    p_k bytea, p_seq bigint, p_token bytea, p_ends bigint, p_owner bytea, p_ttl bigint, p_permits bigint, p_weight bigint, p_once boolean,
    p_max_age bigint, p_process bigint, p_fingerprint bytea
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO @waiter AS w (k, seq, token, kind, ends, owner, ttl, permits, weight, once, max_age, process, fingerprint, grace, asked)
    VALUES (p_k, coalesce(p_seq, nextval('@number')), p_token, 0, p_ends, p_owner, p_ttl, p_permits, p_weight, p_once, p_max_age,
        p_process, p_fingerprint, 0, 0)
    ON CONFLICT (token, k) DO UPDATE SET
        seq = excluded.seq, kind = 0, ends = excluded.ends, owner = excluded.owner, ttl = excluded.ttl, permits = excluded.permits,
        weight = excluded.weight, once = excluded.once, max_age = excluded.max_age, process = excluded.process,
        fingerprint = excluded.fingerprint, grace = 0, asked = 0;
END $$;

-- join_queue gives a token a place, or keeps its place, if another token holds the key by a
-- plain lease and no lease was abandoned. The row is locked. Else the state is -1.
CREATE OR REPLACE FUNCTION @join_queue(
    p_k bytea, p_token bytea, p_ttl bigint, p_place_ttl bigint, p_max_age bigint, p_once boolean, p_fingerprint bytea, p_owner bytea,
    p_process bigint, p_most bigint, moment bigint, OUT state bigint, OUT fence bigint, OUT remains bigint, OUT ahead bigint
) LANGUAGE plpgsql AS $$
DECLARE
    t record;
BEGIN
    state := -1;
    SELECT x.busy, x.fence, x.ends, x.seq, (SELECT w.seq FROM @waiter w WHERE w.token = p_token AND w.k = p_k AND w.ends > moment) AS mine
    INTO t FROM @key x
    WHERE x.k = p_k AND x.token NOT IN ('', p_token) AND x.ends > moment AND x.idle_since = 0 AND NOT @differs(x.fingerprint, p_fingerprint)
        AND NOT (p_max_age > 0 AND x.rec_ends > 0) AND NOT (x.busy AND EXISTS (SELECT FROM @holder h WHERE h.k = p_k));
    IF t.fence IS NULL THEN
        RETURN;
    END IF;
    SELECT count(DISTINCT w.seq) INTO ahead FROM @waiter w
    WHERE w.k = p_k AND w.ends > moment AND w.seq <> t.seq AND (t.mine IS NULL OR w.seq < t.mine);
    IF t.mine IS NULL AND ahead >= p_most THEN
        RETURN;
    END IF;
    PERFORM @place(p_k, t.mine, p_token, moment + p_place_ttl, p_owner, p_ttl, 1, 1, p_once, p_max_age, p_process, p_fingerprint);
    IF NOT t.busy THEN
        UPDATE @key x SET busy = true WHERE x.k = p_k;
    END IF;
    state := 2;
    fence := greatest(t.fence, moment - 1);
    remains := t.ends - moment;
END $$;

-- lock_keys locks the rows of keys, in the order of the keys. It passes rows that hold_in has
-- locked, so that a lease is renewed while a transaction holds it.
CREATE OR REPLACE FUNCTION @lock_keys(p_k bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM @key t WHERE t.k = ANY (p_k) ORDER BY t.k FOR NO KEY UPDATE;
END $$;

-- renew_all prolongs leases, and returns which. It leaves progress as it is where p_progress is
-- NULL.
CREATE OR REPLACE FUNCTION @renew_all(p_k bytea[], p_token bytea[], p_ttl bigint[], p_progress bytea[])
RETURNS SETOF bigint LANGUAGE plpgsql
SET lock_timeout = '2s' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment bigint;
    r record;
BEGIN
    PERFORM @begin_verb();
    PERFORM @lock_keys(p_k);
    moment := @now();
    FOR r IN
        WITH u AS MATERIALIZED (
            SELECT * FROM unnest(p_k, p_token, p_ttl, p_progress) WITH ORDINALITY AS u (k, token, ttl, progress, i)
        ), one AS (
            UPDATE @key t SET ends = moment + u.ttl, busy = t.busy OR u.progress IS NOT NULL
            FROM u WHERE t.k = u.k AND t.token = u.token AND t.ends > moment
            RETURNING u.i, t.fence
        ), many AS (
            UPDATE @holder t SET ends = moment + u.ttl
            FROM u WHERE t.k = u.k AND t.token = u.token AND NOT t.abandoned AND t.ends > moment
            RETURNING u.i, t.fence
        )
        SELECT o.i, o.fence FROM (SELECT * FROM one UNION ALL SELECT * FROM many) o
    LOOP
        IF p_progress[r.i] IS NOT NULL THEN
            INSERT INTO @progress AS t (k, fence, data) VALUES (p_k[r.i], r.fence, p_progress[r.i])
            ON CONFLICT (k, fence) DO UPDATE SET data = excluded.data;
        END IF;
        RETURN NEXT r.i;
    END LOOP;
END $$;

-- hand_over ends a lease that leaves nothing behind, and grants the key to the next waiter if its
-- process listens. A waiter of a process that relays keeps its number. It returns false, and does
-- nothing, if there is more to decide.
CREATE OR REPLACE FUNCTION @hand_over(p_k bytea, p_token bytea, p_outcome bigint, p_pushed_ttl bigint, moment bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    t record;
    p record;
BEGIN
    SELECT x.seq, x.rec_ends, x.idle_since > 0 OR EXISTS (SELECT FROM @holder h WHERE h.k = p_k) OR EXISTS (SELECT FROM @progress g WHERE g.k = p_k)
        OR x.seq > 0 AND (p_outcome = 3 OR EXISTS (SELECT FROM @waiter w WHERE w.k = p_k AND w.seq = x.seq AND w.kind = 0)) AS more
    INTO t FROM @key x WHERE x.k = p_k AND x.token = p_token AND x.ends > moment;
    IF t.more IS NOT FALSE THEN
        RETURN false;
    END IF;
    SELECT w.*, lead(w.seq) OVER (ORDER BY w.seq, w.kind) AS following INTO p
    FROM (SELECT * FROM @waiter w WHERE w.k = p_k AND w.seq <> t.seq ORDER BY w.seq, w.kind LIMIT 2) w ORDER BY w.seq, w.kind LIMIT 1;
    IF p.ends <= moment OR p.kind = 2 OR p.kind = 0 AND (p.permits <> 1 OR p.once OR p.process = 0 OR p.max_age > 0 AND t.rec_ends > 0
        OR p.following = p.seq OR NOT @is_listening(p.process)) THEN
        RETURN false;
    END IF;
    IF t.seq > 0 THEN
        DELETE FROM @waiter w WHERE w.k = p_k AND w.seq = t.seq;
    END IF;
    IF p IS NULL OR p.kind = 1 THEN -- the next place, if any, is a reserved place
        UPDATE @key x SET token = '', busy = p.kind IS NOT NULL, listed = x.rec_ends = 0 WHERE x.k = p_k;
        RETURN true;
    END IF;
    IF p.process < 0 THEN
        UPDATE @waiter w SET kind = 2 WHERE w.token = p.token AND w.k = p_k;
    ELSE
        DELETE FROM @waiter w WHERE w.token = p.token AND w.k = p_k;
    END IF;
    UPDATE @key x SET
        fence = greatest(x.fence + 1, moment), busy = p.process < 0 OR p.following IS NOT NULL, token = p.token, attempt = 1, since = moment,
        ends = moment + least(p_pushed_ttl, p.ttl), once = false,
        seq = CASE WHEN p.process < 0 THEN p.seq ELSE 0 END, inherits = 0, fingerprint = p.fingerprint, owner = p.owner
    WHERE x.k = p_k
    RETURNING pg_notify(@channel(p.process), encode(p.token, 'hex') || ':' || x.fence || ':1') INTO p;
    RETURN true;
END $$;

-- leave_queue deletes the place of a token, if another token holds the key by a plain lease: then
-- no waiter has to be served. It reports whether it did.
CREATE OR REPLACE FUNCTION @leave_queue(p_k bytea, p_token bytea, moment bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM @waiter w WHERE w.token = p_token AND w.k = p_k AND w.ends > moment AND w.kind <> 2
        AND EXISTS (SELECT FROM @key x WHERE x.k = p_k AND x.token <> '' AND x.ends > moment);
    RETURN FOUND;
END $$;

-- settle_all ends plain leases and deletes places. It returns the numbers of the settlements that it
-- made, and the negative numbers of those that are not plain. The others are lost.
CREATE OR REPLACE FUNCTION @settle_all(p_k bytea[], p_token bytea[], p_outcome bigint[], p_retention bigint[], p_data bytea[], p_pushed_ttl bigint)
RETURNS SETOF bigint LANGUAGE plpgsql
SET lock_timeout = '2s' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment bigint;
    busy boolean; -- all keys are
    done boolean[];
    n bigint;
BEGIN
    moment := @begin_verb();
    SELECT bool_and(l.busy) INTO busy FROM (SELECT t.busy FROM @key t WHERE t.k = ANY (p_k) ORDER BY t.k FOR UPDATE) l;
    moment := @now();
    IF NOT busy THEN -- the plain leases, of which only the record is left
        FOR n IN
            WITH u AS MATERIALIZED (
                SELECT u.*, u.outcome = 1 AS keeps
                FROM unnest(p_k, p_token, p_outcome, p_retention, p_data) WITH ORDINALITY AS u (k, token, outcome, retention, data, i)
            )
            UPDATE @key t SET
                token = '',
                rec_token = CASE WHEN u.keeps THEN u.token ELSE t.rec_token END,
                rec_written = CASE WHEN u.keeps THEN moment ELSE t.rec_written END,
                rec_ends = CASE WHEN u.keeps THEN moment + u.retention ELSE t.rec_ends END,
                rec_fingerprint = CASE WHEN u.keeps THEN t.fingerprint ELSE t.rec_fingerprint END,
                rec_data = CASE WHEN u.keeps THEN u.data ELSE t.rec_data END,
                listed = NOT u.keeps AND t.rec_ends = 0
            FROM u
            WHERE t.k = u.k AND t.token = u.token AND NOT t.busy AND t.ends > moment AND u.outcome <> 2
            RETURNING u.i
        LOOP
            done[n] := true;
            RETURN NEXT n;
        END LOOP;
    END IF;
    FOR n IN 1 .. cardinality(p_k) LOOP
        IF done[n] THEN
            CONTINUE;
        ELSIF p_outcome[n] IN (0, 3) AND @hand_over(p_k[n], p_token[n], p_outcome[n], p_pushed_ttl, moment)
            OR p_outcome[n] <> 1 AND @leave_queue(p_k[n], p_token[n], moment) THEN
            RETURN NEXT n;
        ELSIF EXISTS (SELECT FROM @key t WHERE t.k = p_k[n] AND t.token = p_token[n])
            OR EXISTS (SELECT FROM @holder h WHERE h.k = p_k[n] AND h.token = p_token[n] AND NOT h.abandoned)
            OR p_outcome[n] <> 1 AND EXISTS (SELECT FROM @waiter w WHERE w.token = p_token[n] AND w.k = p_k[n]) THEN
            RETURN NEXT -n;
        ELSIF p_outcome[n] = 1
            AND EXISTS (SELECT FROM @key t WHERE t.k = p_k[n] AND t.rec_token = p_token[n] AND t.rec_ends > moment) THEN
            RETURN NEXT n; -- it was sent twice
        END IF;
    END LOOP;
END $$;
