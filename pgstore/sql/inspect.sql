-- What operators force.

-- evict ends leases, whoever holds them, and forgets an abandoned attempt: all, or
-- that of the token. It returns how many were ended.
CREATE OR REPLACE FUNCTION @evict(p_k bytea, p_token bytea) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    st @state;
    h @lease;
    n integer := 1;
    ended integer := 0;
BEGIN
    PERFORM @begin_verb();
    IF @lock_keys(ARRAY[p_k]) IS NULL THEN
        RETURN 0;
    END IF;
    st := @advance(@load(p_k));
    WHILE n <= cardinality(st.holders) LOOP
        h := st.holders[n];
        IF p_token IS NOT NULL AND h.token <> p_token THEN
            n := n + 1;
            CONTINUE;
        END IF;
        st := @take_out(st, n);
        IF st.saved THEN
            DELETE FROM @progress t WHERE t.k = st.k AND t.token = h.token;
        END IF;
        IF h.seq IS NOT NULL THEN
            PERFORM @give_up(st.k, h.seq);
        END IF;
        ended := ended + 1;
    END LOOP;
    IF (st.lost).token IS NOT NULL AND (p_token IS NULL OR (st.lost).token = p_token) THEN
        ended := ended + 1;
    END IF;
    IF ended > 0 THEN
        st := @clean(st, NULL);
        IF st.queued THEN
            st := @hand_over(st);
        END IF;
    END IF;
    PERFORM @store(st);
    RETURN ended;
END $$;

-- forget deletes a key's record and forgets an abandoned attempt. It reports whether
-- there was anything to forget.
CREATE OR REPLACE FUNCTION @forget(p_k bytea) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    st @state;
    forgot boolean := false;
BEGIN
    PERFORM @begin_verb();
    IF @lock_keys(ARRAY[p_k]) IS NULL THEN
        RETURN false;
    END IF;
    st := @advance(@load(p_k));
    forgot := coalesce(st.rec_ends > st.now, false);
    UPDATE @key t SET rec_token = NULL, rec_written = NULL, rec_ends = NULL, rec_fingerprint = NULL, rec_data = NULL
    WHERE t.k = p_k AND t.rec_ends IS NOT NULL;
    IF (st.lost).token IS NOT NULL THEN
        forgot := true;
        st := @clean(st, NULL);
        IF st.queued THEN
            st := @hand_over(st);
        END IF;
    END IF;
    PERFORM @store(st);
    RETURN forgot;
END $$;

-- resolve gives an unknown outcome its record, if there is one and, when the token
-- is not NULL, it is of that attempt.
CREATE OR REPLACE FUNCTION @resolve(p_k bytea, p_token bytea, p_data bytea, p_retention bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    st @state;
BEGIN
    PERFORM @begin_verb();
    IF @lock_keys(ARRAY[p_k]) IS NULL THEN
        RETURN false;
    END IF;
    st := @advance(@load(p_k));
    IF (st.lost).once IS NOT TRUE OR (st.lost).token <> p_token THEN
        PERFORM @store(st);
        RETURN false;
    END IF;
    st := @write_record(st, (st.lost).token, (st.lost).fingerprint, p_data, @lasting(p_retention));
    IF st.queued THEN
        PERFORM @answer_all(st);
    END IF;
    st := @clean(st, NULL);
    IF st.queued THEN
        st := @hand_over(st);
    END IF;
    PERFORM @store(st);
    RETURN true;
END $$;
