-- What can happen to a key. Each function works on a @state: one that has got the
-- key's row locked loads it, changes it with these, and stores it.

-- us counts microseconds.
CREATE OR REPLACE FUNCTION @us(d interval) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT (extract(epoch FROM d) * 1000000)::bigint $$;

-- clock_us is a time as a fence.
CREATE OR REPLACE FUNCTION @clock_us(t timestamptz) RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT (extract(epoch FROM t) * 1000000)::bigint $$;

-- lasting is so many microseconds.
CREATE OR REPLACE FUNCTION @lasting(us bigint) RETURNS interval LANGUAGE sql IMMUTABLE AS
$$ SELECT us * interval '1 microsecond' $$;

-- begin_verb sees to it that a call is what it promises. What was granted must not
-- be lost in a crash, and whoever waited for a lock must see what the one before
-- did.
CREATE OR REPLACE FUNCTION @begin_verb() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'dibs works at the isolation level read committed, not %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM set_config('lock_timeout', '2s', true);
END $$;

-- load reads a key whose row is locked, and lets time pass no further.
CREATE OR REPLACE FUNCTION @load(p_k bytea) RETURNS @state LANGUAGE plpgsql AS $$
DECLARE
    st @state;
    mark bigint;
BEGIN
    SELECT t.k, t.fence, t.permits, t.queued, t.saved, t.abandoned,
        CASE
            WHEN t.token IS NOT NULL THEN ARRAY[ROW(t.token, t.fence, t.attempt, t.since, t.ends, t.offered,
                t.once, t.inherits, t.seq, t.fingerprint, t.owner)::@lease]
            WHEN t.permits > 1 THEN coalesce((SELECT array_agg(ROW(h.token, h.fence, h.attempt, h.since, h.ends, h.offered,
                h.once, h.inherits, h.seq, h.fingerprint, h.owner)::@lease ORDER BY h.fence) FROM @holder h WHERE h.k = p_k),
                ARRAY[]::@lease[])
            ELSE ARRAY[]::@lease[]
        END,
        CASE WHEN t.lost_token IS NOT NULL THEN ROW(t.lost_token, t.lost_fence, t.lost_attempt, t.lost_since, t.lost_ends,
            false, t.lost_once, t.lost_inherits, NULL, t.lost_fingerprint, t.lost_owner)::@lease END,
        t.rec_token, t.rec_written, t.rec_ends, t.rec_fingerprint, clock_timestamp(), false, NULL
    INTO st FROM @key t WHERE t.k = p_k;
    IF st.k IS NOT NULL AND st.fence = 0 THEN
        -- A new row. What it must rise above is known now that it stands: no row of
        -- the key is deleted without raising the mark in the same step.
        SELECT fence INTO mark FROM @meta;
        st.fence := mark;
    END IF;
    RETURN st;
END $$;

-- store writes what has changed.
CREATE OR REPLACE FUNCTION @store(st @state) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    h @lease;
    l @lease := st.lost;
BEGIN
    IF NOT st.changed THEN
        RETURN;
    END IF;
    IF st.permits = 1 THEN
        h := st.holders[1];
    END IF;
    UPDATE @key SET
        fence = st.fence, permits = st.permits, queued = st.queued, saved = st.saved,
        busy = st.queued OR st.saved OR st.abandoned > 0 OR l.token IS NOT NULL
            OR st.permits > 1 AND cardinality(st.holders) > 0
            OR h.token IS NOT NULL AND (h.offered OR h.inherits OR h.seq IS NOT NULL),
        token = h.token, attempt = h.attempt, since = coalesce(h.since, since), ends = h.ends, offered = h.offered,
        once = h.once, inherits = h.inherits, seq = h.seq, fingerprint = h.fingerprint, owner = h.owner,
        abandoned = st.abandoned,
        lost_token = l.token, lost_fence = l.fence, lost_attempt = l.attempt, lost_since = l.since, lost_ends = l.ends,
        lost_once = l.once, lost_inherits = l.inherits, lost_fingerprint = l.fingerprint, lost_owner = l.owner
    WHERE k = st.k;
END $$;

-- put writes a lease that has changed into its place among the holders, or a new
-- one to their end.
CREATE OR REPLACE FUNCTION @put(st @state, at integer, h @lease) RETURNS @state LANGUAGE plpgsql AS $$
BEGIN
    st.changed := true;
    st.holders[at] := h;
    IF st.permits > 1 THEN
        INSERT INTO @holder AS t (k, token, fence, attempt, since, ends, offered, once, inherits, seq, fingerprint, owner)
        VALUES (st.k, h.token, h.fence, h.attempt, h.since, h.ends, h.offered, h.once, h.inherits, h.seq, h.fingerprint, h.owner)
        ON CONFLICT (k, token) DO UPDATE SET
            fence = excluded.fence, attempt = excluded.attempt, since = excluded.since, ends = excluded.ends,
            offered = excluded.offered, once = excluded.once, inherits = excluded.inherits, seq = excluded.seq,
            fingerprint = excluded.fingerprint, owner = excluded.owner;
    END IF;
    RETURN st;
END $$;

-- take_out ends that one of the holders, and nothing else.
CREATE OR REPLACE FUNCTION @take_out(st @state, at integer) RETURNS @state LANGUAGE plpgsql AS $$
BEGIN
    st.changed := true;
    IF st.permits > 1 THEN
        DELETE FROM @holder t WHERE t.k = st.k AND t.token = (st.holders[at]).token;
    END IF;
    st.holders := st.holders[:at - 1] || st.holders[at + 1:];
    RETURN st;
END $$;

-- holder_at returns which holder has that token, or NULL.
CREATE OR REPLACE FUNCTION @holder_at(holders @lease[], p_token bytea) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    FOR n IN 1 .. cardinality(holders) LOOP
        IF (holders[n]).token = p_token THEN
            RETURN n;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- clashes reports whether a holder does something else, beside that token itself, to
-- which the key may be offered.
CREATE OR REPLACE FUNCTION @clashes(holders @lease[], p_fingerprint bytea, but bytea) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_fingerprint IS NOT NULL THEN
        FOR n IN 1 .. cardinality(holders) LOOP
            IF (holders[n]).fingerprint <> p_fingerprint AND (holders[n]).token IS DISTINCT FROM but THEN
                RETURN true;
            END IF;
        END LOOP;
    END IF;
    RETURN false;
END $$;

-- grant_to adds a lease, with the next fence.
CREATE OR REPLACE FUNCTION @grant_to(st @state, h @lease) RETURNS @state LANGUAGE plpgsql AS $$
BEGIN
    st.fence := greatest(st.fence + 1, @clock_us(st.now));
    h.fence := st.fence;
    h.attempt := st.abandoned + 1;
    h.since := st.now;
    h.inherits := coalesce((st.lost).inherits, false);
    RETURN @put(st, cardinality(st.holders) + 1, h);
END $$;

-- abandon notes that a lease, which is no holder any more, ended then without being
-- settled.
CREATE OR REPLACE FUNCTION @abandon(st @state, h @lease, ended timestamptz) RETURNS @state LANGUAGE plpgsql AS $$
DECLARE
    place bigint := h.seq;
BEGIN
    st.changed := true;
    IF st.saved AND EXISTS (SELECT FROM @progress t WHERE t.k = st.k AND t.token = h.token) THEN
        DELETE FROM @progress t WHERE t.k = st.k AND t.token = '';
        UPDATE @progress t SET token = '' WHERE t.k = st.k AND t.token = h.token;
        h.inherits := true;
    END IF;
    h.ends := ended;
    h.seq := NULL;
    st.abandoned := st.abandoned + 1;
    IF (st.lost).token IS NULL OR (st.lost).ends <= ended THEN
        st.lost := h;
    END IF;
    IF (st.lost).once THEN
        PERFORM @ask_all(st.k, st.queued);
    END IF;
    IF place IS NOT NULL THEN
        PERFORM @put_back(st.k, place, ended);
        st.queued := true;
    END IF;
    RETURN st;
END $$;

-- clean forgets what was abandoned: a lease came to a good end, or it is long ago.
CREATE OR REPLACE FUNCTION @clean(st @state, p_token bytea) RETURNS @state LANGUAGE plpgsql AS $$
BEGIN
    st.changed := true;
    st.abandoned := 0;
    st.lost := NULL;
    IF NOT st.saved THEN
        RETURN st;
    END IF;
    DELETE FROM @progress t WHERE t.k = st.k AND t.token = p_token;
    FOR n IN 1 .. cardinality(st.holders) LOOP
        IF (st.holders[n]).inherits THEN
            RETURN st;
        END IF;
    END LOOP;
    DELETE FROM @progress t WHERE t.k = st.k AND t.token = '';
    st.saved := EXISTS (SELECT FROM @progress t WHERE t.k = st.k);
    RETURN st;
END $$;

-- undo ends a lease, which is no holder any more, as if it had not been granted.
CREATE OR REPLACE FUNCTION @undo(st @state, h @lease) RETURNS @state LANGUAGE plpgsql AS $$
BEGIN
    st.changed := true;
    IF st.saved THEN
        DELETE FROM @progress t WHERE t.k = st.k AND t.token = h.token;
    END IF;
    IF h.seq IS NOT NULL THEN
        PERFORM @put_back(st.k, h.seq, st.now);
        st.queued := true;
    END IF;
    IF h.offered OR (st.lost).token IS NOT NULL THEN
        RETURN st;
    END IF;
    IF h.attempt = 1 THEN
        RETURN @clean(st, NULL);
    END IF;
    -- It stands for those before it, which it cannot name.
    h.ends := st.now;
    h.once := false;
    h.seq := NULL;
    st.abandoned := h.attempt - 1;
    st.lost := h;
    RETURN st;
END $$;

-- advance lets time pass: what has run out is dead, and what that frees is handed
-- over.
CREATE OR REPLACE FUNCTION @advance(st @state) RETURNS @state LANGUAGE plpgsql AS $$
DECLARE
    n integer := 1;
    h @lease;
BEGIN
    WHILE n <= cardinality(st.holders) LOOP
        h := st.holders[n];
        IF h.ends > st.now THEN
            n := n + 1;
            CONTINUE;
        END IF;
        st := @take_out(st, n);
        IF NOT h.offered THEN
            st := @abandon(st, h, h.ends);
        END IF;
    END LOOP;
    IF (st.lost).token IS NOT NULL AND NOT (st.lost).once AND (st.lost).ends + interval '24 hours' <= st.now THEN
        st := @clean(st, NULL);
    END IF;
    IF st.queued THEN
        st := @hand_over(st);
    END IF;
    RETURN st;
END $$;

-- answer_all sends those whom the record answers to read it.
CREATE OR REPLACE FUNCTION @answer_all(st @state) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    tokens bytea[];
    processes bigint[];
BEGIN
    WITH gone AS (
        DELETE FROM @waiter t
        WHERE t.k = st.k AND t.kind < 3 AND t.max_age > interval '0' AND st.rec_written >= st.now - t.max_age
        RETURNING t.token, t.process
    )
    SELECT array_agg(g.token), array_agg(g.process) INTO tokens, processes FROM gone g;
    PERFORM @tell_many(tokens, processes);
END $$;

-- write_record leaves a record behind.
CREATE OR REPLACE FUNCTION @write_record(st @state, p_token bytea, p_fingerprint bytea, p_data bytea, p_retention interval)
RETURNS @state LANGUAGE plpgsql AS $$
BEGIN
    st.rec_token := p_token;
    st.rec_written := st.now;
    st.rec_ends := st.now + p_retention;
    st.rec_fingerprint := p_fingerprint;
    UPDATE @key t SET rec_token = st.rec_token, rec_written = st.rec_written, rec_ends = st.rec_ends,
        rec_fingerprint = st.rec_fingerprint, rec_data = p_data
    WHERE t.k = st.k;
    RETURN st;
END $$;
