-- Claims.

-- held answers one whose turn has not come and who has the place p, or none.
CREATE OR REPLACE FUNCTION @held(st @state, p @waiter) RETURNS @answer LANGUAGE plpgsql AS $$
DECLARE
    a @answer;
    first bigint;
    last bigint;
    soonest timestamptz;
    other timestamptz;
BEGIN
    a.state := 2;
    a.fence := greatest(st.fence, @clock_us(st.now) - 1); -- none that was lost with the data is above
    a.queued := p.seq IS NOT NULL;
    a.ahead := 0;
    FOR n IN 1 .. cardinality(st.holders) LOOP
        soonest := least(soonest, (st.holders[n]).ends);
    END LOOP;
    IF st.queued THEN
        -- In a long queue those in it are not counted one by one; and these two are written
        -- so that they can only be planned by way of the index, from its ends.
        first := (SELECT t.seq FROM @waiter t WHERE t.k = st.k ORDER BY t.seq LIMIT 1);
        last := (SELECT t.seq FROM @waiter t WHERE t.k = st.k ORDER BY t.seq DESC LIMIT 1);
        a.ahead := greatest(coalesce(p.seq, last + 1) - first, 0);
        IF a.ahead BETWEEN 1 AND 64 THEN
            SELECT count(*) INTO a.ahead FROM @waiter t
            WHERE t.k = st.k AND t.seq < coalesce(p.seq, last + 1) AND t.kind < 3 AND NOT t.parked AND t.ends > st.now;
        END IF;
        IF cardinality(st.holders) < st.permits THEN
            SELECT t.kind > 0 AND t.seq IS DISTINCT FROM p.seq INTO a.idle FROM @waiter t
            WHERE t.k = st.k AND t.kind < 3 AND NOT t.parked AND t.ends > st.now ORDER BY t.seq LIMIT 1;
        END IF;
        IF a.ahead > 0 THEN
            SELECT min(u.ends) INTO other FROM (
                SELECT t.ends FROM @waiter t
                WHERE t.k = st.k AND t.seq < coalesce(p.seq, last + 1) AND t.kind < 3 AND NOT t.parked AND t.ends > st.now
                ORDER BY t.seq LIMIT 4
            ) u;
            soonest := least(soonest, other);
        END IF;
    END IF;
    a.remains := greatest(@us(coalesce(soonest, p.ends, st.now) - st.now), 0);
    RETURN a;
END $$;

-- behind answers one from a place that a lease has taken.
CREATE OR REPLACE FUNCTION @behind(st @state, h @lease) RETURNS @answer LANGUAGE plpgsql AS $$
DECLARE
    a @answer;
    soonest timestamptz;
BEGIN
    a.state := 2;
    a.fence := greatest(st.fence, @clock_us(st.now) - 1);
    a.queued := true;
    SELECT count(*) INTO a.ahead FROM @waiter t
    WHERE t.k = st.k AND t.seq < h.seq AND t.kind < 3 AND NOT t.parked AND t.ends > st.now;
    IF a.ahead > 0 THEN
        SELECT min(u.ends) INTO soonest FROM (
            SELECT t.ends FROM @waiter t
            WHERE t.k = st.k AND t.seq < h.seq AND t.kind < 3 AND NOT t.parked AND t.ends > st.now
            ORDER BY t.seq LIMIT 4
        ) u;
    END IF;
    FOR n IN 1 .. cardinality(st.holders) LOOP
        soonest := least(soonest, (st.holders[n]).ends);
    END LOOP;
    a.remains := @us(soonest - st.now);
    RETURN a;
END $$;

-- granted answers a holder.
CREATE OR REPLACE FUNCTION @granted(st @state, h @lease) RETURNS @answer LANGUAGE plpgsql AS $$
DECLARE
    a @answer;
BEGIN
    a.state := 1;
    a.fence := h.fence;
    a.attempt := h.attempt;
    IF h.inherits THEN
        SELECT t.data INTO a.data FROM @progress t WHERE t.k = st.k AND t.token = '';
    END IF;
    RETURN a;
END $$;

-- agreed reports whether there is somebody to agree with about the permits.
CREATE OR REPLACE FUNCTION @agreed(st @state) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN cardinality(st.holders) > 0 OR st.queued
        AND EXISTS (SELECT FROM @waiter t WHERE t.k = st.k AND t.kind < 3 AND NOT t.parked AND t.ends > st.now);
END $$;

-- refused answers what is not for want of a turn, or returns one without a state.
CREATE OR REPLACE FUNCTION @refused(st @state, c @ask) RETURNS @answer LANGUAGE plpgsql AS $$
DECLARE
    a @answer;
BEGIN
    IF st.permits <> c.permits AND @agreed(st) THEN
        a.state := 6;
        a.permits := st.permits;
    ELSIF @clashes(st.holders, c.fingerprint, c.token) OR (st.lost).fingerprint <> c.fingerprint THEN
        a.state := 5;
    ELSIF c.max_age > interval '0' AND st.rec_ends > st.now AND st.rec_written >= st.now - c.max_age THEN
        IF st.rec_fingerprint <> c.fingerprint THEN
            a.state := 5;
        ELSE
            a.state := 4;
            a.age := @us(st.now - st.rec_written);
            a.remains := @us(st.rec_ends - st.now);
            SELECT t.rec_data INTO a.data FROM @key t WHERE t.k = st.k;
        END IF;
    ELSIF (st.lost).once THEN
        a.state := 7;
        a.data := (st.lost).token;
    END IF;
    RETURN a;
END $$;

-- join_queue gives a token a place with that seq.
CREATE OR REPLACE FUNCTION @join_queue(p_k bytea, p_seq bigint, c @ask, now timestamptz) RETURNS @waiter LANGUAGE plpgsql AS $$
DECLARE
    p @waiter;
BEGIN
    INSERT INTO @waiter (k, seq, token, kind, parked, ends, lasts, hold, pressed, once, max_age, process, tells, fingerprint, owner)
    VALUES (p_k, p_seq, c.token, CASE c.mode WHEN 2 THEN 1 ELSE 0 END, false, now + c.place, c.place, c.hold, false, c.once, c.max_age,
        CASE WHEN c.mode <> 2 THEN c.process END, c.tells AND NOT c.once, c.fingerprint, c.owner)
    RETURNING * INTO p;
    RETURN p;
END $$;

-- adopt makes a place, also one that is taken, what the claim asks for. What must
-- not be done twice waits until it is known that it was heard, and so is not told.
CREATE OR REPLACE FUNCTION @adopt(p_k bytea, p_seq bigint, c @ask, now timestamptz) RETURNS @waiter LANGUAGE plpgsql AS $$
DECLARE
    p @waiter;
    prolongs boolean := c.redeems IS NULL AND (c.mode <> 0 OR c.place > interval '0');
BEGIN
    UPDATE @waiter t SET
        ends = CASE WHEN prolongs AND t.kind < 3 THEN now + c.place ELSE t.ends END,
        lasts = CASE WHEN prolongs THEN c.place ELSE t.lasts END,
        hold = CASE WHEN c.mode = 2 OR c.mode = 1 AND t.kind < 3 THEN c.hold ELSE t.hold END,
        pressed = t.pressed AND NOT prolongs,
        once = CASE WHEN c.mode <> 0 THEN c.once ELSE t.once END,
        max_age = CASE WHEN c.mode <> 0 THEN c.max_age ELSE t.max_age END,
        tells = CASE WHEN c.mode <> 0 THEN c.tells AND NOT c.once ELSE t.tells END,
        fingerprint = CASE WHEN c.mode <> 0 THEN c.fingerprint ELSE t.fingerprint END,
        owner = CASE WHEN c.mode <> 0 THEN c.owner ELSE t.owner END,
        process = CASE WHEN c.mode <> 2 THEN c.process ELSE t.process END,
        kind = CASE
            WHEN t.kind >= 3 THEN CASE WHEN c.mode <> 2 THEN 4 ELSE t.kind END
            WHEN c.mode = 1 THEN 0                      -- it waits
            WHEN c.mode = 2 THEN greatest(t.kind, 1)    -- it is reserved
            WHEN t.kind = 2 THEN 1                      -- whoever asked is told anew
            ELSE t.kind
        END
    WHERE t.k = p_k AND t.seq = p_seq
    RETURNING * INTO p;
    RETURN p;
END $$;

-- full reports whether as many wait as may. Places that have run out do not count.
CREATE OR REPLACE FUNCTION @full(p_k bytea, now timestamptz, most integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    first bigint;
    last bigint;
    n bigint;
BEGIN
    first := (SELECT t.seq FROM @waiter t WHERE t.k = p_k ORDER BY t.seq LIMIT 1);
    last := (SELECT t.seq FROM @waiter t WHERE t.k = p_k ORDER BY t.seq DESC LIMIT 1);
    IF last IS NULL OR last - first + 1 < most THEN
        RETURN false;
    END IF;
    SELECT count(*) INTO n FROM @waiter t WHERE t.k = p_k AND t.kind < 3;
    IF n >= most THEN
        DELETE FROM @waiter t WHERE t.k = p_k AND t.kind < 3 AND t.ends <= now;
        SELECT count(*) INTO n FROM @waiter t WHERE t.k = p_k AND t.kind < 3;
    END IF;
    RETURN n >= most;
END $$;

-- decide answers a claim that is more than a look.
CREATE OR REPLACE FUNCTION @decide(st @state, c @ask) RETURNS @state LANGUAGE plpgsql AS $$
DECLARE
    at integer;
    by_whom integer;
    h @lease;
    p @waiter;
    ahead @waiter;
    a @answer;
    redeems boolean := c.redeems IS NOT NULL;
    source bytea := coalesce(c.redeems, c.token);
    seat bigint;
BEGIN
    st := @advance(st);
    at := @holder_at(st.holders, c.token);
    IF at IS NOT NULL THEN
        h := st.holders[at];
        IF NOT h.offered THEN -- it asks again
            IF c.mode = 2 THEN -- and has no use for a place
                a.state := 2;
                a.fence := greatest(st.fence, @clock_us(st.now) - 1);
                a.remains := @us(h.ends - st.now);
                a.ahead := 0;
                a.queued := false;
                st.answer := a;
                RETURN st;
            END IF;
            h.ends := st.now + c.ttl;
            st := @put(st, at, h);
            st.answer := @granted(st, h);
            RETURN st;
        END IF;
    END IF;
    IF st.permits <> c.permits AND NOT @agreed(st) THEN
        st.permits := c.permits;
        st.changed := true;
    END IF;
    a := @refused(st, c);

    IF at IS NOT NULL THEN -- the key is offered to it
        IF a.state = 7 THEN
            st.answer := a;
            RETURN st;
        END IF;
        IF a.state IS NULL AND c.mode <> 2 THEN
            h.offered := false;
            h.ends := st.now + c.ttl;
            h.fingerprint := c.fingerprint;
            h.once := c.once;
            h.owner := c.owner;
            st.lost := NULL;
            st := @put(st, at, h);
            st.answer := @granted(st, h);
            RETURN st;
        END IF;
        st := @take_out(st, at);
        IF a.state IS NULL THEN -- it wants to be asked later, and was first
            seat := coalesce((SELECT t.seq FROM @waiter t WHERE t.k = st.k ORDER BY t.seq LIMIT 1), 1) - 1;
            p := @join_queue(st.k, seat, c, st.now);
            UPDATE @waiter t SET kind = 2 WHERE t.k = st.k AND t.seq = seat; -- it knows that its turn has come
            st.queued := true;
            st.answer := @held(st, p);
            RETURN st;
        END IF;
        st := @hand_over(st);
        st.answer := a;
        RETURN st;
    END IF;

    by_whom := @taken_by(st, source);
    IF a.state IS NOT NULL THEN
        IF a.state IN (4, 5) AND st.queued THEN -- it has its answer
            PERFORM @remove_place(st.k, c.token);
            IF redeems AND by_whom IS NULL THEN
                DELETE FROM @waiter t WHERE t.k = st.k AND t.token = c.redeems AND t.kind IN (1, 2);
            END IF;
            st := @hand_over(st);
        END IF;
        st.answer := a;
        RETURN st;
    END IF;
    IF by_whom IS NOT NULL THEN
        h := st.holders[by_whom];
        PERFORM @adopt(st.k, h.seq, c, st.now);
        st.answer := @behind(st, h);
        RETURN st;
    END IF;

    p := @place(st, source);
    IF redeems AND coalesce(p.kind, 0) = 0 THEN -- it is as none
        redeems := false;
        c.redeems := NULL;
        c.place := interval '0'; -- which is not asked for then
        source := c.token;
        p := @place(st, source);
    END IF;
    IF st.queued THEN
        ahead := @front(st.k, st.now);
    END IF;
    IF c.mode <> 2 AND cardinality(st.holders) < st.permits AND (ahead.seq IS NULL OR ahead.token = source) THEN
        h := NULL;
        h.token := c.token;
        h.ends := st.now + c.ttl;
        h.offered := false;
        h.once := c.once;
        h.fingerprint := c.fingerprint;
        h.owner := c.owner;
        IF redeems THEN
            UPDATE @waiter t SET kind = 3, ends = 'infinity', pressed = false,
                hold = CASE WHEN c.hold > interval '0' THEN c.hold ELSE t.hold END
            WHERE t.k = st.k AND t.seq = p.seq;
            PERFORM @remove_place(st.k, c.token);
            h.seq := p.seq;
        ELSIF p.seq IS NOT NULL THEN
            DELETE FROM @waiter t WHERE t.k = st.k AND t.seq = p.seq;
        END IF;
        st := @grant_to(st, h);
        st.lost := NULL;
        h := st.holders[cardinality(st.holders)];
        IF st.queued THEN
            IF p.seq IS NOT NULL AND NOT redeems THEN
                st.queued := EXISTS (SELECT FROM @waiter t WHERE t.k = st.k);
            END IF;
            st := @hand_over(st);
        END IF;
        st.answer := @granted(st, h);
        RETURN st;
    END IF;
    IF p.seq IS NOT NULL THEN
        p := @adopt(st.k, p.seq, c, st.now);
    ELSIF c.mode <> 0 THEN
        IF st.queued AND @full(st.k, st.now, c.most) THEN
            a.state := 0;
            st.answer := a;
            RETURN st;
        END IF;
        -- A place that has run out, or one that waits for its turn under this token
        -- elsewhere, gives way to the new one.
        PERFORM @remove_place(st.k, c.token);
        seat := coalesce((SELECT t.seq FROM @waiter t WHERE t.k = st.k ORDER BY t.seq DESC LIMIT 1), 0) + 1;
        p := @join_queue(st.k, seat, c, st.now);
        st.changed := st.changed OR NOT st.queued;
        st.queued := true;
    END IF;
    -- A reserved place whose turn has come keeps somebody from the key: from now on
    -- its time is its Hold.
    IF ahead.kind > 0 AND NOT ahead.pressed AND ahead.hold > interval '0' AND c.mode <> 2
        AND ahead.seq IS DISTINCT FROM p.seq AND cardinality(st.holders) < st.permits THEN
        UPDATE @waiter t SET pressed = true, ends = least(t.ends, st.now + t.hold) WHERE t.k = st.k AND t.seq = ahead.seq;
    END IF;
    st.answer := @held(st, p);
    RETURN st;
END $$;

-- claim answers claims, each in a row of its own and in no order. Looks that need not
-- do anything come first. The other plain ones are answered or granted by one statement,
-- which also takes the locks of the rest, in the keys' order like everybody.
CREATE OR REPLACE FUNCTION @claim(
    p_k bytea[], p_mode smallint[], p_token bytea[], p_redeems bytea[], p_ttl bigint[], p_place bigint[],
    p_hold bigint[], p_permits integer[], p_max_age bigint[], p_once boolean[], p_fingerprint bytea[], p_owner bytea[],
    p_process bigint, p_tells boolean, p_most integer
) RETURNS SETOF @answer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    mark bigint;
    base bigint; -- the fence of a key that nothing is known of
    grants integer := 0;
    r record;
    a @answer;
    st @state;
    q @ask;
    rest @ask[] := ARRAY[]::@ask[];
    answered boolean[];
BEGIN
    PERFORM @begin_verb();
    SELECT m.fence INTO STRICT mark FROM @meta m;
    base := greatest(mark + 1, @clock_us(moment));

    IF 3 = ANY (p_mode) THEN
        FOR a IN SELECT * FROM @look_on(p_k, p_mode, p_token, p_redeems, p_permits, p_fingerprint, moment, base - 1) LOOP
            answered[a.i] := true;
            RETURN NEXT a;
        END LOOP;
    END IF;

    FOR r IN
        WITH c AS MATERIALIZED (
            SELECT c.*, t.ends AS held_until, t.fence AS last_fence, t.rec_written, t.rec_ends, t.rec_data,
                CASE
                    WHEN answered[c.i::integer] THEN NULL
                    WHEN t.k IS NULL OR t.token IS NULL AND NOT t.busy THEN
                        CASE
                            WHEN t.rec_ends > moment AND c.max_age > 0 AND t.rec_written >= moment - @lasting(c.max_age)
                                THEN CASE WHEN t.rec_fingerprint <> c.fingerprint THEN 5 ELSE 4 END
                            WHEN c.mode = 3 THEN 3
                            WHEN c.mode <= 1 AND c.permits = 1 AND c.redeems IS NULL AND t.rec_ends IS NULL THEN 1
                            ELSE -1
                        END
                    WHEN t.busy OR t.ends <= moment OR t.token = c.token THEN -1
                    WHEN c.permits <> 1 THEN 6
                    WHEN t.fingerprint <> c.fingerprint THEN 5
                    WHEN t.rec_ends > moment AND c.max_age > 0 AND t.rec_written >= moment - @lasting(c.max_age)
                        THEN CASE WHEN t.rec_fingerprint <> c.fingerprint THEN 5 ELSE 4 END
                    WHEN c.mode IN (0, 3) THEN 2
                    ELSE -1
                END AS way
            FROM unnest(p_k, p_mode, p_token, p_redeems, p_ttl, p_place, p_hold, p_permits, p_max_age, p_once, p_fingerprint,
                p_owner)
                WITH ORDINALITY AS c (k, mode, token, redeems, ttl, place, hold, permits, max_age, once, fingerprint, owner, i)
            LEFT JOIN @key t ON t.k = c.k
        ), took AS (
            INSERT INTO @key AS t (k, fence, permits, busy, queued, saved, abandoned,
                token, attempt, since, ends, offered, once, inherits, fingerprint, owner)
            SELECT DISTINCT ON (c.k) c.k, CASE c.way WHEN 1 THEN base ELSE 0 END, 1, false, false, false, 0,
                CASE c.way WHEN 1 THEN c.token END, 1, moment, moment + @lasting(c.ttl), false, c.once, false, c.fingerprint, c.owner
            FROM c WHERE c.way IN (1, -1) ORDER BY c.k, c.i
            ON CONFLICT (k) DO UPDATE SET
                fence = greatest(t.fence + 1, excluded.fence), permits = 1,
                token = excluded.token, attempt = 1, since = excluded.since, ends = excluded.ends, offered = false,
                once = excluded.once, inherits = false, fingerprint = excluded.fingerprint, owner = excluded.owner
            WHERE excluded.token IS NOT NULL AND t.token IS NULL AND NOT t.busy AND t.rec_ends IS NULL
            RETURNING t.k, t.token, t.fence
        )
        -- Which were granted is looked up in a hash, and of their fences only those that
        -- are unusual: the clock was set back.
        SELECT c.*, CASE
            WHEN c.way <> 1 OR (c.k, c.token) NOT IN (SELECT g.k, g.token FROM took g WHERE g.token IS NOT NULL) THEN NULL
            WHEN (SELECT max(g.fence) FROM took g) = base THEN base
            ELSE (SELECT g.fence FROM took g WHERE g.k = c.k)
        END AS fence
        FROM c
    LOOP
        CONTINUE WHEN r.way IS NULL;
        a := NULL;
        a.i := r.i;
        a.state := r.way;
        CASE r.way
            WHEN 1 THEN
                a.fence := r.fence;
                a.attempt := 1;
                grants := grants + 1;
            WHEN 2 THEN
                a.remains := @us(r.held_until - moment);
                a.ahead := 0;
                a.queued := false;
                a.fence := greatest(r.last_fence, base - 1);
            WHEN 4 THEN
                a.age := @us(moment - r.rec_written);
                a.remains := @us(r.rec_ends - moment);
                a.data := r.rec_data;
            WHEN 6 THEN
                a.permits := 1;
            ELSE NULL;
        END CASE;
        IF r.way = -1 OR r.way = 1 AND r.fence IS NULL THEN
            rest := rest || ROW(r.i, r.k, r.mode, r.token, r.redeems, @lasting(r.ttl), @lasting(r.place), @lasting(r.hold),
                r.permits, @lasting(r.max_age), r.once, r.fingerprint, r.owner, p_process, p_tells, p_most)::@ask;
        ELSE
            RETURN NEXT a;
        END IF;
    END LOOP;
    IF grants > 0 THEN
        SELECT m.fence INTO mark FROM @meta m;
        IF mark >= base THEN
            RAISE EXCEPTION 'dibs: a key was forgotten meanwhile; try again' USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;

    FOREACH q IN ARRAY rest LOOP
        st := @load(q.k);
        IF q.mode = 3 THEN
            st := @look(st, q);
        ELSE
            st := @decide(st, q);
        END IF;
        PERFORM @store(st);
        a := st.answer;
        a.i := q.i;
        RETURN NEXT a;
    END LOOP;
END $$;
