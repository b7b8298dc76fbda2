-- Looks.

-- look answers what Try would find.
CREATE OR REPLACE FUNCTION @look(st @state, c @ask) RETURNS @state LANGUAGE plpgsql AS $$
DECLARE
    a @answer;
    p @waiter;
    ahead @waiter;
    by_whom integer;
    source bytea := coalesce(c.redeems, c.token);
BEGIN
    st := @advance(st);
    a.state := 3;
    IF @holder_at(st.holders, c.token) IS NOT NULL THEN
        st.answer := a;
        RETURN st;
    END IF;
    st.answer := @refused(st, c);
    IF (st.answer).state IS NOT NULL THEN
        RETURN st;
    END IF;
    by_whom := @taken_by(st, source);
    IF by_whom IS NOT NULL THEN
        st.answer := @behind(st, st.holders[by_whom]);
        RETURN st;
    END IF;
    IF st.queued THEN
        SELECT * INTO p FROM @waiter t
        WHERE t.k = st.k AND t.token = source AND t.kind < 3 AND NOT t.parked AND t.ends > st.now;
        IF c.redeems IS NOT NULL AND coalesce(p.kind, 0) = 0 THEN
            source := c.token;
            SELECT * INTO p FROM @waiter t
            WHERE t.k = st.k AND t.token = source AND t.kind < 3 AND NOT t.parked AND t.ends > st.now;
        END IF;
        ahead := @front(st.k, st.now);
    END IF;
    IF cardinality(st.holders) = 0 AND ahead.seq IS NULL
        OR cardinality(st.holders) < st.permits AND (ahead.seq IS NULL OR ahead.token = source) THEN
        st.answer := a;
    ELSE
        st.answer := @held(st, p);
    END IF;
    RETURN st;
END $$;

-- look_on answers those looks at a key with one permit in whose queue nothing has to be
-- done: it is held, or whose turn it is has been told. They only read: who watches a queue
-- is in nobody's way.
CREATE OR REPLACE FUNCTION @look_on(
    p_k bytea[], p_mode smallint[], p_token bytea[], p_redeems bytea[], p_permits integer[], p_fingerprint bytea[],
    moment timestamptz, least_fence bigint
) RETURNS SETOF @answer LANGUAGE plpgsql AS $$
BEGIN
    -- One statement, so that all of it is seen at one moment.
    RETURN QUERY
    WITH q AS MATERIALIZED (
        SELECT c.i, t.k, t.fence, CASE WHEN t.token IS NOT NULL THEN t.ends END AS ends, t.queued, p.seq, f.seq AS told,
            (SELECT w.seq FROM @waiter w WHERE w.k = t.k ORDER BY w.seq LIMIT 1) AS first,
            (SELECT w.seq FROM @waiter w WHERE w.k = t.k ORDER BY w.seq DESC LIMIT 1) AS last
        FROM unnest(p_k, p_mode, p_token, p_redeems, p_permits, p_fingerprint)
            WITH ORDINALITY AS c (k, mode, token, redeems, permits, fingerprint, i)
        JOIN @key t ON t.k = c.k
        LEFT JOIN LATERAL (
            SELECT w.seq, w.kind, w.ends FROM @waiter w
            WHERE t.token IS NULL AND w.k = t.k AND w.kind < 3 AND NOT w.parked ORDER BY w.seq LIMIT 1
        ) f ON true
        LEFT JOIN @waiter p ON p.k = c.k AND p.token = coalesce(c.redeems, c.token)
        WHERE c.mode = 3 AND c.permits = 1 AND t.permits = 1 AND t.busy AND t.lost_token IS NULL AND t.rec_ends IS NULL
            AND CASE
                WHEN t.token IS NULL THEN t.queued AND f.kind = 2 AND f.ends > moment
                ELSE t.token <> c.token AND NOT t.offered AND t.ends > moment AND (t.fingerprint = c.fingerprint) IS NOT FALSE
            END
            AND CASE
                WHEN p.seq IS NULL THEN c.redeems IS NULL
                ELSE p.kind < 3 AND (p.kind > 0 OR c.redeems IS NULL) AND NOT p.parked AND p.ends > moment
            END
    ), a AS MATERIALIZED (
        SELECT q.*, CASE
            WHEN NOT q.queued THEN 0
            WHEN coalesce(q.seq, q.last + 1) - q.first BETWEEN 1 AND 64 THEN
                (SELECT count(*) FROM @waiter w
                WHERE w.k = q.k AND w.seq < coalesce(q.seq, q.last + 1) AND w.kind < 3 AND NOT w.parked AND w.ends > moment)
            ELSE greatest(coalesce(q.seq, q.last + 1) - q.first, 0)
        END AS ahead
        FROM q
        WHERE q.told IS NULL OR q.told IS DISTINCT FROM q.seq
    )
    SELECT a.i::integer, 2::smallint, greatest(a.fence, least_fence), NULL::integer,
        greatest(@us(least(a.ends, CASE WHEN a.ahead > 0 THEN (SELECT min(u.ends) FROM (
            SELECT w.ends FROM @waiter w
            WHERE w.k = a.k AND w.seq < coalesce(a.seq, a.last + 1) AND w.kind < 3 AND NOT w.parked AND w.ends > moment
            ORDER BY w.seq LIMIT 4
        ) u) END) - moment), 0),
        a.ahead::integer, a.seq IS NOT NULL, CASE WHEN a.told IS NOT NULL THEN true END, NULL::bigint, NULL::integer, NULL::bytea
    FROM a
    UNION ALL
    SELECT q.i::integer, 3::smallint, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM q WHERE q.told = q.seq;
END $$;
