-- Waiting without listening.

-- turns returns which of these tokens have a place, and of what kind. Whose kind
-- has changed, or who has none any more, should ask.
CREATE OR REPLACE FUNCTION @turns(p_k bytea[], p_token bytea[]) RETURNS TABLE (i integer, kind smallint)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT u.i::integer, t.kind
    FROM unnest(p_k, p_token) WITH ORDINALITY AS u (k, token, i)
    JOIN @waiter t ON t.k = u.k AND t.token = u.token
    WHERE t.ends > moment;
END $$;
