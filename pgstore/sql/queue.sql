-- Who waits for a key, and how those who wait are told.

-- channel is where a process listens.
CREATE OR REPLACE FUNCTION @channel(process bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT '@@_' || to_hex(process) $$;

-- hears reports whether a process listens. Its connection has a lock of that number
-- for as long as it lives.
CREATE OR REPLACE FUNCTION @hears(process bigint) RETURNS boolean LANGUAGE sql AS
$$ SELECT NOT pg_try_advisory_xact_lock_shared(process) $$;

-- tell tells a process something of a token: that it should ask again, or with its
-- fence and attempt that it holds the key.
CREATE OR REPLACE FUNCTION @tell(p_process bigint, p_token bytea, p_grant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_process IS NOT NULL THEN
        PERFORM pg_notify(@channel(p_process), encode(p_token, 'hex') || p_grant);
    END IF;
END $$;

-- tell_many tells many that they should ask again, as many in one message as there
-- is room for.
CREATE OR REPLACE FUNCTION @tell_many(tokens bytea[], processes bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(@channel(u.process), string_agg(encode(u.token, 'hex'), ' '))
    FROM (
        SELECT w.token, w.process, (row_number() OVER (PARTITION BY w.process)) / 200 AS page
        FROM unnest(tokens, processes) AS w (token, process) WHERE w.process IS NOT NULL
    ) u
    GROUP BY u.process, u.page;
END $$;

-- ask_all tells all who wait for a key that they should ask again.
CREATE OR REPLACE FUNCTION @ask_all(p_k bytea, queued boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF queued THEN
        PERFORM @tell_many(array_agg(t.token), array_agg(t.process)) FROM @waiter t WHERE t.k = p_k AND t.kind < 3;
    END IF;
END $$;

-- put_back makes the place stand again that a lease had taken, which ended then.
CREATE OR REPLACE FUNCTION @put_back(p_k bytea, p_seq bigint, ended timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE @waiter t SET kind = 1, ends = ended + t.lasts, pressed = false WHERE t.k = p_k AND t.seq = p_seq;
END $$;

-- give_up ends the place that a lease had taken, and tells those who claim from it.
CREATE OR REPLACE FUNCTION @give_up(p_k bytea, p_seq bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    p @waiter;
BEGIN
    DELETE FROM @waiter t WHERE t.k = p_k AND t.seq = p_seq RETURNING t.* INTO p;
    IF p.kind = 4 THEN
        PERFORM @tell(p.process, p.token, '');
    END IF;
END $$;

-- remove_place ends the place of a token, unless a lease has taken it. (In the
-- language sql it would be planned again for each call.)
CREATE OR REPLACE FUNCTION @remove_place(p_k bytea, p_token bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM @waiter t WHERE t.k = p_k AND t.token = p_token AND t.kind < 3;
END $$;

-- place returns the place of a token, if it has one that stands. One that nobody
-- listened for is back in the order from now on.
CREATE OR REPLACE FUNCTION @place(st @state, p_token bytea) RETURNS @waiter LANGUAGE plpgsql AS $$
DECLARE
    p @waiter;
BEGIN
    IF NOT st.queued THEN
        RETURN NULL;
    END IF;
    SELECT * INTO p FROM @waiter t WHERE t.k = st.k AND t.token = p_token AND t.kind < 3 AND t.ends > st.now;
    IF p.parked THEN
        UPDATE @waiter t SET parked = false WHERE t.k = st.k AND t.seq = p.seq;
        p.parked := false;
    END IF;
    RETURN p;
END $$;

-- taken_by returns which holder has taken the place of that token, or NULL.
CREATE OR REPLACE FUNCTION @taken_by(st @state, p_token bytea) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    place bigint;
BEGIN
    IF st.queued THEN
        SELECT t.seq INTO place FROM @waiter t WHERE t.k = st.k AND t.token = p_token AND t.kind >= 3;
        IF place IS NOT NULL THEN
            FOR n IN 1 .. cardinality(st.holders) LOOP
                IF (st.holders[n]).seq = place THEN
                    RETURN n;
                END IF;
            END LOOP;
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- front returns the first place in the queue, and removes those that have run out if
-- one of them is in front.
CREATE OR REPLACE FUNCTION @front(p_k bytea, now timestamptz) RETURNS @waiter LANGUAGE plpgsql AS $$
DECLARE
    p @waiter;
BEGIN
    LOOP
        SELECT * INTO p FROM @waiter t WHERE t.k = p_k AND t.kind < 3 AND NOT t.parked ORDER BY t.seq LIMIT 1;
        IF p.ends > now THEN
            RETURN p;
        END IF;
        DELETE FROM @waiter t WHERE t.k = p_k AND t.kind < 3 AND t.ends <= now;
        IF p.seq IS NULL THEN
            RETURN NULL;
        END IF;
    END LOOP;
END $$;

-- hand_over offers the key to those in front, as far as there are permits. A
-- reserved place stops it: its redeemer is told to ask.
CREATE OR REPLACE FUNCTION @hand_over(st @state) RETURNS @state LANGUAGE plpgsql AS $$
DECLARE
    p @waiter;
    h @lease;
    told boolean;
BEGIN
    WHILE cardinality(st.holders) < st.permits AND (st.lost).once IS NOT TRUE LOOP
        p := @front(st.k, st.now);
        IF p.seq IS NULL THEN
            -- Those who are parked may come back, and a place that is taken too.
            st.queued := EXISTS (SELECT FROM @waiter t WHERE t.k = st.k);
            st.changed := true;
            RETURN st;
        END IF;
        IF p.max_age > interval '0' AND st.rec_ends > st.now AND st.rec_written >= st.now - p.max_age THEN
            -- The record answers it, and was left in a transaction that did not see it.
            DELETE FROM @waiter t WHERE t.k = st.k AND t.seq = p.seq;
            PERFORM @tell(p.process, p.token, '');
            CONTINUE;
        END IF;
        IF p.kind > 0 THEN
            IF p.kind = 1 THEN
                UPDATE @waiter t SET kind = 2 WHERE t.k = st.k AND t.seq = p.seq;
                PERFORM @tell(p.process, p.token, '');
            END IF;
            RETURN st;
        END IF;
        IF (st.lost).fingerprint <> p.fingerprint THEN
            -- It asks for something else than was abandoned, and is told so when it asks.
            DELETE FROM @waiter t WHERE t.k = st.k AND t.seq = p.seq;
            PERFORM @tell(p.process, p.token, '');
            CONTINUE;
        END IF;
        IF p.process IS NOT NULL AND NOT @hears(p.process) THEN
            UPDATE @waiter t SET parked = true
            WHERE t.k = st.k AND t.process = p.process AND t.kind = 0 AND NOT t.parked;
            CONTINUE;
        END IF;
        DELETE FROM @waiter t WHERE t.k = st.k AND t.seq = p.seq;
        -- A grant that is told is a lease from now on: its holder may begin without
        -- asking. What was abandoned takes an answer to tell, and so does that another
        -- holder does something else.
        told := p.tells AND p.process IS NOT NULL AND (st.lost).token IS NULL
            AND NOT @clashes(st.holders, p.fingerprint, p.token);
        h.token := p.token;
        h.ends := st.now + interval '1 second';
        h.offered := NOT told;
        h.once := p.once;
        h.fingerprint := p.fingerprint;
        h.owner := p.owner;
        st := @grant_to(st, h);
        PERFORM @tell(p.process, p.token,
            CASE WHEN told THEN ':' || st.fence || ':' || st.abandoned + 1 ELSE '' END);
    END LOOP;
    RETURN st;
END $$;

-- pass_on ends a lease and grants the key to the next waiter, where there is no more to
-- it than that, and reports whether it did: the way of most hand-overs, in a tenth of
-- the time.
CREATE OR REPLACE FUNCTION @pass_on(p_k bytea, p_token bytea, moment timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    p @waiter;
    granted bigint;
BEGIN
    SELECT * INTO p FROM @waiter t WHERE t.k = p_k AND t.kind < 3 AND NOT t.parked ORDER BY t.seq LIMIT 1;
    IF p.seq IS NULL OR p.kind <> 0 OR p.ends <= moment OR NOT p.tells OR p.process IS NULL OR NOT @hears(p.process) THEN
        RETURN false;
    END IF;
    UPDATE @key t SET
        fence = greatest(t.fence + 1, @clock_us(moment)),
        queued = m.more, busy = m.more,
        token = p.token, attempt = 1, since = moment, ends = moment + interval '1 second',
        once = p.once, fingerprint = p.fingerprint, owner = p.owner
    FROM (SELECT EXISTS (SELECT FROM @waiter w WHERE w.k = p_k AND w.seq <> p.seq) AS more) m
    WHERE t.k = p_k AND t.token = p_token AND NOT t.offered AND t.ends > moment AND t.permits = 1
        AND NOT t.inherits AND t.seq IS NULL AND NOT t.saved AND t.abandoned = 0 AND t.lost_token IS NULL
        AND NOT (p.max_age > interval '0' AND t.rec_ends IS NOT NULL)
    RETURNING t.fence INTO granted;
    IF granted IS NULL THEN
        RETURN false;
    END IF;
    DELETE FROM @waiter t WHERE t.k = p_k AND t.seq = p.seq;
    PERFORM @tell(p.process, p.token, ':' || granted || ':1');
    RETURN true;
END $$;
