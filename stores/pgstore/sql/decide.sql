-- What package engine decides, for callers that have no engine: claims and settlements by SQL that
-- are not plain. Both agree. Each function is about one key, whose row advance has locked.

-- lease has all leases, wherever they are.
CREATE OR REPLACE VIEW @lease AS
    SELECT k, token, fence, attempt, since, ends, once, seq, inherits, 1::bigint AS permits, 1::bigint AS weight, fingerprint, owner
    FROM @key WHERE token <> ''
    UNION ALL
    SELECT k, token, fence, attempt, since, ends, once, seq, inherits, permits, weight, fingerprint, owner
    FROM @holder WHERE NOT abandoned;

-- fits reports whether the leases leave room for a claim.
CREATE OR REPLACE FUNCTION @fits(p_k bytea, p_permits bigint, p_weight bigint) RETURNS boolean LANGUAGE sql VOLATILE AS
$$ SELECT coalesce(bool_and(l.permits = p_permits), true) AND coalesce(sum(l.weight), 0) + p_weight <= p_permits FROM @lease l WHERE l.k = p_k $$;

-- clashes reports whether a lease, or the abandoned lease, has another fingerprint.
CREATE OR REPLACE FUNCTION @clashes(p_k bytea, p_fingerprint bytea) RETURNS boolean LANGUAGE sql VOLATILE AS
$$ SELECT EXISTS (SELECT FROM @lease l WHERE l.k = p_k AND @differs(l.fingerprint, p_fingerprint))
    OR EXISTS (SELECT FROM @holder h WHERE h.k = p_k AND h.abandoned AND @differs(h.fingerprint, p_fingerprint)) $$;

-- accepts reports whether the record answers a claim with that max_age.
CREATE OR REPLACE FUNCTION @accepts(p_k bytea, p_max_age bigint, moment bigint) RETURNS boolean LANGUAGE sql VOLATILE AS
$$ SELECT EXISTS (SELECT FROM @key x WHERE x.k = p_k AND p_max_age > 0 AND x.rec_ends > moment AND x.rec_written >= moment - p_max_age) $$;

-- wake has a waiter ask.
CREATE OR REPLACE FUNCTION @wake(w @waiter) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF w.kind = 0 AND w.process <> 0 THEN
        PERFORM pg_notify(@channel(w.process), encode(w.token, 'hex'));
    END IF;
END $$;

-- drop_place deletes a place. The last one ends the count of a grace.
CREATE OR REPLACE FUNCTION @drop_place(p_k bytea, p_token bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM @waiter w WHERE w.token = p_token AND w.k = p_k;
    UPDATE @key x SET idle_since = 0 WHERE x.k = p_k AND x.idle_since > 0 AND NOT EXISTS (SELECT FROM @waiter w WHERE w.k = p_k);
END $$;

-- front returns the first place that blocks. passing passes over waiters whose process does not
-- listen. It deletes reserved places in front whose grace is over.
CREATE OR REPLACE FUNCTION @front(p_k bytea, passing boolean, moment bigint) RETURNS @waiter LANGUAGE plpgsql AS $$
DECLARE
    p @waiter;
    idle bigint;
BEGIN
    LOOP
        SELECT w.* INTO p FROM @waiter w
        WHERE w.k = p_k AND w.kind <> 2 AND NOT EXISTS (SELECT FROM @lease l WHERE l.k = p_k AND l.seq = w.seq)
            AND NOT (passing AND w.kind = 0 AND w.process > 0 AND NOT @is_listening(w.process))
        ORDER BY w.seq, w.kind LIMIT 1;
        SELECT x.idle_since INTO idle FROM @key x WHERE x.k = p_k;
        IF p.kind = 1 AND p.grace > 0 AND idle > 0 AND greatest(idle, p.asked) + p.grace <= moment THEN
            PERFORM @drop_place(p_k, p.token);
        ELSE
            RETURN p;
        END IF;
    END LOOP;
END $$;

-- grant makes a lease with the next fence. Its seq is that of its place, which the token has left.
CREATE OR REPLACE FUNCTION @grant(INOUT l @lease, p_grace bigint, moment bigint) LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM @waiter w WHERE w.k = l.k AND w.seq = l.seq) THEN
        l.seq := 0;
    END IF;
    UPDATE @waiter w SET grace = p_grace WHERE w.k = l.k AND w.seq = l.seq AND w.kind = 1 AND p_grace > 0;
    l.since := moment;
    SELECT coalesce(max(h.attempt), 0) + 1, coalesce(max(h.inherits), 0) INTO l.attempt, l.inherits FROM @holder h WHERE h.k = l.k AND h.abandoned;
    UPDATE @key x SET fence = greatest(x.fence + 1, (SELECT m.fence + 1 FROM @meta m), moment), idle_since = 0 WHERE x.k = l.k
    RETURNING x.fence INTO l.fence;
    IF l.permits = 1 THEN
        UPDATE @key x SET token = l.token, attempt = l.attempt, since = l.since, ends = l.ends, once = l.once, seq = l.seq, inherits = l.inherits,
            fingerprint = l.fingerprint, owner = l.owner
        WHERE x.k = l.k;
    ELSE
        INSERT INTO @holder (k, token, abandoned, fence, attempt, since, ends, once, seq, inherits, permits, weight, fingerprint, owner)
        VALUES (l.k, l.token, false, l.fence, l.attempt, l.since, l.ends, l.once, l.seq, l.inherits, l.permits, l.weight, l.fingerprint, l.owner);
    END IF;
END $$;

-- serve hands the key over to the waiters in front while there is room, or wakes the first.
CREATE OR REPLACE FUNCTION @serve(p_k bytea, moment bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    p @waiter;
    l @lease;
    a record;
BEGIN
    LOOP
        SELECT bool_or(h.once) AS once INTO a FROM @holder h WHERE h.k = p_k AND h.abandoned;
        p := @front(p_k, true, moment);
        IF p.k IS NULL OR p.kind = 1 OR a.once OR NOT @fits(p_k, p.permits, p.weight) THEN
            RETURN;
        END IF;
        IF p.process = 0 OR p.once OR a.once IS NOT NULL OR @accepts(p_k, p.max_age, moment) OR @clashes(p_k, p.fingerprint) THEN
            IF p.process < 0 AND NOT @is_listening(p.process) THEN
                UPDATE @waiter w SET kind = 2 WHERE w.token = p.token AND w.k = p_k;
                CONTINUE;
            END IF;
            IF (@front(p_k, false, moment)).token = p.token THEN -- else it would ask in vain, because a claim passes no place over
                PERFORM @wake(p);
            END IF;
            RETURN;
        END IF;
        IF p.process < 0 THEN
            UPDATE @waiter w SET kind = 2 WHERE w.token = p.token AND w.k = p_k;
        ELSE
            PERFORM @drop_place(p_k, p.token);
        END IF;
        l := ROW(p_k, p.token, 0, 0, 0, moment + least(1000000, p.ttl), false, p.seq, 0, p.permits, p.weight, p.fingerprint, p.owner);
        l := @grant(l, p.grace, moment);
        PERFORM pg_notify(@channel(p.process), encode(l.token, 'hex') || ':' || l.fence || ':' || l.attempt);
    END LOOP;
END $$;

-- end_lease deletes a lease.
CREATE OR REPLACE FUNCTION @end_lease(l @lease) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE @key x SET token = '' WHERE x.k = l.k AND x.token = l.token;
    DELETE FROM @holder h WHERE h.k = l.k AND h.token = l.token AND NOT h.abandoned;
END $$;

-- abandon ends a lease that was not settled, at that time.
CREATE OR REPLACE FUNCTION @abandon(l @lease, ended bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    a record;
BEGIN
    PERFORM @end_lease(l);
    DELETE FROM @holder h WHERE h.k = l.k AND h.abandoned RETURNING h.attempt, h.inherits INTO a;
    INSERT INTO @holder (k, token, abandoned, fence, attempt, since, ends, once, seq, inherits, permits, weight, fingerprint, owner)
    VALUES (l.k, l.token, true, l.fence, coalesce(a.attempt, 0) + 1, l.since, ended, l.once, 0,
        CASE WHEN EXISTS (SELECT FROM @progress g WHERE g.k = l.k AND g.fence = l.fence) THEN l.fence ELSE coalesce(a.inherits, 0) END,
        l.permits, l.weight, l.fingerprint, l.owner);
    IF l.once THEN
        PERFORM @wake(w) FROM @waiter w WHERE w.k = l.k;
    END IF;
END $$;

-- finish ends a lease that was settled, with all places at its number and the abandoned lease.
CREATE OR REPLACE FUNCTION @finish(l @lease) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @end_lease(l);
    PERFORM @wake(w), @drop_place(w.k, w.token) FROM @waiter w WHERE w.k = l.k AND w.seq = l.seq;
    DELETE FROM @holder h WHERE h.k = l.k AND h.abandoned;
END $$;

-- advance locks the row of a key, which may be new. It ends what has expired, serves the waiters
-- that this frees the key for, and returns the time.
CREATE OR REPLACE FUNCTION @advance(p_k bytea) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    moment bigint;
    l @lease;
BEGIN
    INSERT INTO @key AS x (k, fence) VALUES (p_k, 0) ON CONFLICT (k) DO UPDATE SET fence = x.fence WHERE false;
    PERFORM FROM @key x WHERE x.k = p_k FOR UPDATE;
    moment := @now();
    DELETE FROM @waiter w WHERE w.k = p_k AND w.ends <= moment;
    PERFORM @drop_place(p_k, '');
    FOR l IN SELECT y.* FROM @lease y WHERE y.k = p_k AND y.ends <= moment ORDER BY y.ends, y.fence LOOP
        IF l.ends > 0 THEN
            PERFORM @abandon(l, l.ends);
        ELSE -- a transaction of the application settled it
            PERFORM @finish(l);
            PERFORM @wake(w) FROM @waiter w JOIN @key x ON x.k = w.k WHERE w.k = p_k AND w.max_age > 0 AND x.rec_token = l.token;
        END IF;
    END LOOP;
    DELETE FROM @holder h WHERE h.k = p_k AND h.abandoned AND NOT h.once AND h.ends + 86400000000 <= moment;
    PERFORM @serve(p_k, moment);
    RETURN moment;
END $$;

-- close deletes progress that no lease inherits, and notes what the other tables have of the key.
CREATE OR REPLACE FUNCTION @close(p_k bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM @progress g WHERE g.k = p_k
        AND NOT EXISTS (SELECT FROM @lease l WHERE l.k = p_k AND g.fence IN (l.fence, l.inherits))
        AND NOT EXISTS (SELECT FROM @holder h WHERE h.k = p_k AND g.fence IN (h.fence, h.inherits));
    UPDATE @key x SET listed = x.rec_ends = 0 OR x.token <> '', busy = EXISTS (SELECT FROM @waiter w WHERE w.k = p_k)
        OR EXISTS (SELECT FROM @holder h WHERE h.k = p_k) OR EXISTS (SELECT FROM @progress g WHERE g.k = p_k)
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
    l @lease;
    own @waiter;
    f @waiter := @front(p_k, false, moment);
    room boolean := @fits(p_k, p_permits, p_weight);
    first boolean;
BEGIN
    SELECT y.* INTO l FROM @lease y WHERE y.k = p_k AND y.token = p_token;
    SELECT w.* INTO own FROM @waiter w WHERE w.token = p_token AND w.k = p_k;
    first := f.k IS NULL OR coalesce(own.seq <= f.seq, false);
    state := CASE
        WHEN l.k IS NOT NULL THEN 1
        WHEN @clashes(p_k, p_fingerprint) THEN 5
        WHEN @accepts(p_k, p_max_age, moment) THEN (SELECT CASE WHEN @differs(x.rec_fingerprint, p_fingerprint) THEN 5 ELSE 4 END FROM @key x WHERE x.k = p_k)
        WHEN EXISTS (SELECT FROM @holder h WHERE h.k = p_k AND h.abandoned AND h.once) THEN 6
        WHEN room AND first AND (own.k IS NULL OR NOT EXISTS (SELECT FROM @lease y WHERE y.k = p_k AND y.seq = own.seq)) THEN 1
        ELSE 2 END;
    CASE state
        WHEN 1 THEN
            IF l.k IS NOT NULL THEN
                UPDATE @key x SET ends = moment + p_ttl WHERE x.k = p_k AND x.token = p_token;
                UPDATE @holder h SET ends = moment + p_ttl WHERE h.k = p_k AND h.token = p_token AND NOT h.abandoned;
            ELSE
                PERFORM @drop_place(p_k, p_token);
                l := ROW(p_k, p_token, 0, 0, 0, moment + p_ttl, p_once, coalesce(own.seq, 0), 0, p_permits, p_weight, p_fingerprint, p_owner);
                l := @grant(l, 0, moment);
                PERFORM @serve(p_k, moment);
            END IF;
            fence := l.fence;
            attempt := l.attempt;
            SELECT g.data INTO progress FROM @progress g WHERE g.k = p_k AND g.fence = l.inherits;
        WHEN 2 THEN
            UPDATE @key x SET idle_since = greatest(moment, 1) WHERE x.k = p_k AND x.idle_since = 0 AND room AND NOT first AND f.kind = 1;
            SELECT count(DISTINCT w.seq) INTO ahead FROM @waiter w
            WHERE w.k = p_k AND w.kind <> 2 AND (own.k IS NULL OR w.seq < own.seq) AND NOT EXISTS (SELECT FROM @lease y WHERE y.k = p_k AND y.seq = w.seq);
            IF p_mode = 1 THEN
                IF own.k IS NULL AND ahead >= p_most THEN
                    RAISE EXCEPTION 'dibs: the queue of the key is full: % places already', ahead USING ERRCODE = 'DIBS5';
                END IF;
                INSERT INTO @waiter AS w (k, seq, token, kind, ends, owner, ttl, permits, weight, once, max_age, process, fingerprint, grace, asked)
                VALUES (p_k, coalesce(own.seq, nextval('@number')), p_token, 0, moment + p_place_ttl, p_owner, p_ttl, p_permits, p_weight, p_once,
                    p_max_age, 0, p_fingerprint, 0, 0)
                ON CONFLICT (token, k) DO UPDATE SET kind = 0, ends = excluded.ends, owner = excluded.owner, ttl = excluded.ttl,
                    permits = excluded.permits, weight = excluded.weight, once = excluded.once, max_age = excluded.max_age, process = 0,
                    fingerprint = excluded.fingerprint, grace = 0, asked = 0;
            END IF;
            SELECT greatest(x.fence, moment - 1), coalesce((SELECT min(y.ends) FROM @lease y WHERE y.k = p_k) - moment, 0) INTO fence, remains
            FROM @key x WHERE x.k = p_k;
        ELSE
            IF own.k IS NOT NULL AND state <> 6 THEN
                PERFORM @drop_place(p_k, p_token);
                PERFORM @serve(p_k, moment);
            END IF;
            SELECT greatest(moment - x.rec_written, 0), x.rec_ends - moment, x.rec_data INTO age, remains, data FROM @key x WHERE x.k = p_k AND state = 4;
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
    SELECT y.* INTO l FROM @lease y WHERE y.k = p_k AND y.token = p_token;
    DELETE FROM @waiter w WHERE w.k = p_k AND w.token = p_token AND w.kind = 2;
    IF l.k IS NULL AND p_outcome = 1 THEN
        done := EXISTS (SELECT FROM @key x WHERE x.k = p_k AND x.rec_token = p_token AND x.rec_ends > moment); -- it was sent twice
    ELSIF l.k IS NULL THEN
        done := EXISTS (SELECT FROM @waiter w WHERE w.k = p_k AND w.token = p_token);
        PERFORM @drop_place(p_k, p_token);
    ELSIF p_outcome = 2 THEN
        PERFORM @abandon(l, moment);
    ELSIF p_outcome = 3 THEN
        PERFORM @end_lease(l);
    ELSE
        PERFORM @finish(l);
        IF p_outcome = 1 THEN
            UPDATE @key x SET rec_token = p_token, rec_written = moment, rec_ends = moment + p_retention, rec_fingerprint = l.fingerprint, rec_data = p_data
            WHERE x.k = p_k;
            PERFORM @wake(w) FROM @waiter w WHERE w.k = p_k AND w.max_age > 0;
        END IF;
    END IF;
    PERFORM @serve(p_k, moment);
    PERFORM @close(p_k);
    RETURN done;
END $$;
