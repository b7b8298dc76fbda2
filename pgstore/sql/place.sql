-- The way of most jobs, for whole batches: a place on a key that nobody is at, the key
-- from that place, what is asked from places that stand behind others, and its end with nobody
-- behind. What is not as simple as that is left to the functions that do one key at a
-- time. But for stand_by all rows of the keys are locked, by a statement before, so that
-- what these see of their queues is as it is.

-- take_places answers those claims that reserve a place on a key that is idle, or are
-- made from the first place of one that nobody holds.
CREATE OR REPLACE FUNCTION @take_places(asks @ask[]) RETURNS SETOF @answer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    mark bigint; -- the fence of a key that nothing is known of
BEGIN
    SELECT m.fence INTO STRICT mark FROM @meta m;
    RETURN QUERY
    WITH q AS MATERIALIZED (
        SELECT u.*, count(*) OVER (PARTITION BY u.k) AS asked FROM unnest(asks) u
    ), plain AS MATERIALIZED (
        SELECT q.*, t.queued, t.permits AS agreed FROM q JOIN @key t ON t.k = q.k
        WHERE q.asked = 1 AND t.token IS NULL AND NOT t.saved AND t.abandoned = 0 AND t.lost_token IS NULL
            AND t.rec_ends IS NULL
    ), joins AS MATERIALIZED (
        SELECT p.* FROM plain p WHERE p.mode = 2 AND NOT p.queued
            AND NOT EXISTS (SELECT FROM @holder h WHERE h.k = p.k)
            AND NOT EXISTS (SELECT FROM @waiter w WHERE w.k = p.k)
    ), places AS (
        INSERT INTO @waiter (k, seq, token, kind, parked, ends, lasts, hold, pressed, once, max_age, process, tells, fingerprint, owner)
        SELECT j.k, 1, j.token, 1, false, moment + j.place, j.place, j.hold, false, j.once, j.max_age, NULL,
            j.tells AND NOT j.once, j.fingerprint, j.owner
        FROM joins j
    ), reserved AS (
        UPDATE @key t SET fence = CASE t.fence WHEN 0 THEN mark ELSE t.fence END, permits = j.permits, queued = true, busy = true
        FROM joins j WHERE t.k = j.k
        RETURNING j.i, t.fence, j.place
    ), redeems AS MATERIALIZED (
        SELECT p.*, f.seq FROM plain p
        JOIN LATERAL (
            SELECT w.seq, w.token, w.kind, w.ends FROM @waiter w
            WHERE w.k = p.k AND w.kind < 3 AND NOT w.parked ORDER BY w.seq LIMIT 1
        ) f ON f.token = p.redeems AND f.kind > 0 AND f.ends > moment
        WHERE p.mode = 0 AND p.permits = 1 AND p.agreed = 1 AND p.queued
            AND NOT EXISTS (SELECT FROM @waiter w WHERE w.k = p.k AND w.token = p.token)
    ), taken AS (
        UPDATE @waiter t SET kind = 3, ends = 'infinity', pressed = false, redeemer = NULL,
            hold = CASE WHEN r.hold > interval '0' THEN r.hold ELSE t.hold END
        FROM redeems r WHERE t.k = r.k AND t.seq = r.seq
    ), granted AS (
        UPDATE @key t SET fence = greatest(CASE t.fence WHEN 0 THEN mark ELSE t.fence END + 1, @clock_us(moment)),
            token = r.token, attempt = 1, since = moment, ends = moment + r.ttl, offered = false, once = r.once,
            inherits = false, seq = r.seq, fingerprint = r.fingerprint, owner = r.owner
        FROM redeems r WHERE t.k = r.k
        RETURNING r.i, t.fence
    )
    SELECT s.i, 2::smallint, greatest(s.fence, @clock_us(moment) - 1), NULL::integer, @us(s.place), 0, true, false,
        NULL::bigint, NULL::integer, NULL::bytea
    FROM reserved s
    UNION ALL
    SELECT g.i, 1::smallint, g.fence, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM granted g;
END $$;

-- stand_by answers claims from places that stand behind others, and prolongs such places.
-- It locks their rows and no key's, and waits for nobody: who has locked the key reads such
-- a row anew under its lock before it hands the key over there, or passes it by. A place
-- that is not as it has to be by then, or that somebody has locked, is answered 9.
CREATE OR REPLACE FUNCTION @stand_by(asks @ask[], moment timestamptz, least_fence bigint) RETURNS SETOF @answer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    WITH q AS MATERIALIZED (
        SELECT u.*, t.fence AS last_fence, CASE WHEN t.token IS NOT NULL THEN t.ends END AS held_until, p.seq, f.seq AS in_front,
            CASE WHEN u.mode = 0 AND NOT f.pressed AND f.hold > interval '0' THEN moment + f.hold END AS hold_ends,
            (SELECT w.seq FROM @waiter w WHERE w.k = u.k ORDER BY w.seq LIMIT 1) AS first
        FROM unnest(asks) u
        JOIN @key t ON t.k = u.k
        JOIN @waiter p ON p.k = u.k AND p.token = coalesce(u.redeems, u.token)
            AND p.kind = 1 AND NOT p.parked AND p.ends > moment
        LEFT JOIN LATERAL (
            SELECT w.* FROM @waiter w
            WHERE t.token IS NULL AND w.k = t.k AND w.kind < 3 AND NOT w.parked ORDER BY w.seq LIMIT 1
        ) f ON true
        WHERE @stands_behind(t, f, u.mode, u.token, u.redeems, u.permits, u.fingerprint, moment)
        FOR NO KEY UPDATE OF p SKIP LOCKED
    ), prolongs AS MATERIALIZED (
        SELECT DISTINCT ON (q.k, q.seq) q.* FROM q WHERE q.mode = 2 ORDER BY q.k, q.seq, q.i DESC
    ), redeems AS MATERIALIZED (
        SELECT DISTINCT ON (q.k, q.seq) q.k, q.seq, q.process, q.place, q.hold, q.owner,
            @waits(ROW(q.i, q.k, q.mode, q.token, q.redeems, q.ttl, q.place, q.hold, q.permits, q.max_age, q.once,
                q.fingerprint, q.owner, q.process, q.tells, q.most)::@ask) AS waits, q.token
        FROM q WHERE q.mode = 0 ORDER BY q.k, q.seq, q.i DESC
    ), prolonged AS (
        UPDATE @waiter t SET ends = moment + q.place, lasts = q.place, hold = q.hold, pressed = false, once = q.once,
            max_age = q.max_age, tells = q.tells AND NOT q.once, fingerprint = q.fingerprint, owner = q.owner,
            process = CASE WHEN r.k IS NULL THEN t.process ELSE r.process END,
            redeemer = CASE WHEN r.k IS NULL THEN t.redeemer WHEN r.waits THEN r.token END,
            redeemer_ends = CASE WHEN r.k IS NULL THEN t.redeemer_ends WHEN r.waits THEN moment + r.place END,
            redeemer_hold = CASE WHEN r.k IS NULL THEN t.redeemer_hold WHEN r.waits THEN r.hold END,
            redeemer_owner = CASE WHEN r.k IS NULL THEN t.redeemer_owner WHEN r.waits THEN r.owner END
        FROM prolongs q LEFT JOIN redeems r ON r.k = q.k AND r.seq = q.seq
        WHERE t.k = q.k AND t.seq = q.seq
    ), redeemed AS (
        UPDATE @waiter t SET process = r.process, redeemer = CASE WHEN r.waits THEN r.token END,
            redeemer_ends = CASE WHEN r.waits THEN moment + r.place END, redeemer_hold = CASE WHEN r.waits THEN r.hold END,
            redeemer_owner = CASE WHEN r.waits THEN r.owner END
        FROM redeems r
        WHERE t.k = r.k AND t.seq = r.seq AND NOT EXISTS (SELECT FROM prolongs q WHERE q.k = r.k AND q.seq = r.seq)
    ), presses AS MATERIALIZED ( -- as decide has it; a place that somebody has locked may be on its way
        SELECT t.k, t.seq FROM (SELECT DISTINCT q.k, q.in_front FROM q WHERE q.hold_ends IS NOT NULL) f
        JOIN @waiter t ON t.k = f.k AND t.seq = f.in_front
        WHERE t.kind = 2 AND NOT t.pressed AND t.hold > interval '0'
        FOR NO KEY UPDATE OF t SKIP LOCKED
    ), pressed AS (
        UPDATE @waiter t SET pressed = true, ends = least(t.ends, moment + t.hold)
        FROM presses p WHERE t.k = p.k AND t.seq = p.seq
    ), a AS MATERIALIZED (
        SELECT q.*, CASE WHEN q.seq - q.first BETWEEN 1 AND 64 THEN
                (SELECT count(*) FROM @waiter w
                WHERE w.k = q.k AND w.seq < q.seq AND w.kind < 3 AND NOT w.parked AND w.ends > moment)
            ELSE greatest(q.seq - q.first, 0)
        END AS ahead
        FROM q
    )
    SELECT a.i, 2::smallint, greatest(a.last_fence, least_fence), NULL::integer,
        greatest(@us(least(a.held_until, a.hold_ends, CASE WHEN a.ahead > 0 THEN (SELECT min(u.ends) FROM (
            SELECT w.ends FROM @waiter w
            WHERE w.k = a.k AND w.seq < a.seq AND w.kind < 3 AND NOT w.parked AND w.ends > moment
            ORDER BY w.seq LIMIT 4
        ) u) END) - moment), 0),
        a.ahead::integer, true, CASE WHEN a.held_until IS NULL THEN true END, NULL::bigint, NULL::integer, NULL::bytea
    FROM a
    UNION ALL
    SELECT u.i, 9::smallint, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM unnest(asks) u WHERE u.i NOT IN (SELECT q.i FROM q);
END $$;

-- stand_down ends the wait of claims at places where they were not granted, and have none of
-- their own. It locks as stand_by does. It returns which of them it did.
CREATE OR REPLACE FUNCTION @stand_down(p_k bytea[], p_token bytea[], p_redeems bytea[]) RETURNS SETOF integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    PERFORM @begin_verb();
    RETURN QUERY
    WITH u AS MATERIALIZED (
        SELECT u.i, t.k, t.seq FROM unnest(p_k, p_token, p_redeems) WITH ORDINALITY AS u (k, token, redeems, i)
        JOIN @waiter t ON t.k = u.k AND t.token = u.redeems
        WHERE t.redeemer = u.token AND NOT EXISTS (SELECT FROM @waiter w WHERE w.k = u.k AND w.token = u.token)
        FOR NO KEY UPDATE OF t SKIP LOCKED
    ), gone AS (
        UPDATE @waiter t SET redeemer = NULL FROM u WHERE t.k = u.k AND t.seq = u.seq
    )
    SELECT u.i::integer FROM u;
END $$;

-- leave_places ends those leases that were made from a place behind which nobody is,
-- and the places with them. It returns which of them it did.
CREATE OR REPLACE FUNCTION @leave_places(p_k bytea[], p_token bytea[], p_outcome smallint[]) RETURNS SETOF integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH u AS MATERIALIZED (
        SELECT u.k, u.token, u.i, t.seq
        FROM unnest(p_k, p_token, p_outcome) WITH ORDINALITY AS u (k, token, outcome, i) JOIN @key t ON t.k = u.k
        WHERE u.outcome = 0 AND t.token = u.token AND NOT t.offered AND t.ends > moment AND t.permits = 1 AND t.seq IS NOT NULL
            AND NOT t.inherits AND NOT t.saved AND t.abandoned = 0 AND t.lost_token IS NULL
            AND (SELECT count(*) FILTER (WHERE w.seq = t.seq AND w.kind = 3) = 1 AND count(*) = 1
                FROM (SELECT w.seq, w.kind FROM @waiter w WHERE w.k = u.k LIMIT 2) w)
    ), gone AS (
        DELETE FROM @waiter t USING u WHERE t.k = u.k AND t.seq = u.seq
    ), ended AS (
        UPDATE @key t SET token = NULL, attempt = NULL, ends = NULL, offered = NULL, once = NULL, inherits = NULL, seq = NULL,
            fingerprint = NULL, owner = NULL, queued = false, busy = false
        FROM u WHERE t.k = u.k
        RETURNING u.i
    )
    SELECT e.i::integer FROM ended e;
END $$;
