-- What there is to know of keys from $1, up to $2 (NULL: all) and of the name $3
-- (NULL: any), at most $5 of them. $4 asks for the records' data. A key has a row for
-- each of its holders, and one for the last lease that was abandoned; or one that
-- tells of none.
SELECT t.k, t.permits, t.rec_token, coalesce(octet_length(t.rec_data), 0), @us(n.now - t.rec_written), @us(t.rec_ends - n.now),
    CASE WHEN $4 THEN t.rec_data END,
    (SELECT count(*) FROM @waiter w WHERE w.k = t.k AND w.kind < 3 AND NOT w.parked AND w.ends > n.now)
        + (SELECT count(*) FROM @waiter w WHERE w.k = t.k AND w.kind >= 3 AND (
            w.seq = t.seq AND t.ends <= n.now AND t.ends + w.lasts > n.now
            OR EXISTS (SELECT FROM @holder h WHERE h.k = w.k AND h.seq = w.seq AND h.ends <= n.now AND h.ends + w.lasts > n.now))),
    a.token, a.fence, a.attempt, @us(n.now - a.since), @us(a.ends - n.now), a.offered, a.once, a.owner, a.lost
FROM (SELECT clock_timestamp() AS now) n, LATERAL (
    SELECT * FROM @key t
    WHERE t.k >= $1 AND ($2::bytea IS NULL OR t.k <= $2) AND ($3::bytea IS NULL OR substr(t.k, 2 + get_byte(t.k, 0)) = $3)
        AND (t.token IS NOT NULL OR t.busy OR t.rec_ends > n.now)
    ORDER BY t.k LIMIT $5
) t LEFT JOIN LATERAL (
    SELECT t.token, t.fence, t.attempt, t.since, t.ends, t.offered, t.once, t.owner, false AS lost WHERE t.token IS NOT NULL
    UNION ALL
    SELECT h.token, h.fence, h.attempt, h.since, h.ends, h.offered, h.once, h.owner, false FROM @holder h
    WHERE h.k = t.k AND t.permits > 1
    UNION ALL
    SELECT t.lost_token, t.lost_fence, t.lost_attempt, t.lost_since, t.lost_ends, false, t.lost_once, t.lost_owner, true
    WHERE t.lost_token IS NOT NULL
) a ON true
ORDER BY t.k, a.lost, a.fence
