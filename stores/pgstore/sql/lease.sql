-- Leases by SQL, in any language. They are a public interface, as those in transaction.sql: names,
-- parameters, defaults and SQLSTATEs stay. Who may call them may take and end any lease of the
-- store whose token it knows. Keys, owners and data are text, or base64 with format => 'base64'.
-- Each of them but hold_in works at READ COMMITTED only, and counts when it is committed.

-- span reads a duration that has to be 1 ms at least.
CREATE OR REPLACE FUNCTION @span(name text, value interval) RETURNS bigint LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF @micros_of(value) >= 1000 THEN
        RETURN @micros_of(value);
    END IF;
    RAISE EXCEPTION 'dibs: % is %; it must be 1 ms to 292 years', name, coalesce(value::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
END $$;

-- text_of writes a result.
CREATE OR REPLACE FUNCTION @text_of(value bytea, format text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE format WHEN 'base64' THEN translate(encode(value, 'base64'), E'\n', '') ELSE convert_from(value, 'UTF8') END $$;

-- claim takes the lease of a key for ttl, or says why not. It never waits. The same token gets the
-- same grant again, for ttl from now. With place_ttl, a token that is not granted joins the key's queue,
-- and keeps its place while it is asked again within place_ttl. state is
--
--   granted   fence; attempt, 1 + how many leases in a row were abandoned before; progress that they saved
--   held      remaining, until the first lease expires unless it is renewed; ahead, how many come before
--   done      record answers, because it is younger than max_age; its age; remaining, how long it is kept
--   mismatch  a lease or the record has another fingerprint (the 64 hexadecimal digits of a SHA-256)
--   unknown   a lease that was taken at_most_once expired. An operator resolves it.
--
-- The key has that many permits, of which the claim takes weight. owner (HOST PID PURPOSE) is for
-- people to read. It raises 22023 for a parameter that no store accepts, DIBS5 if the queue has
-- 100,000 places, 25000 at another isolation level, 55P03 if another transaction kept the row
-- locked for 2 s.
CREATE OR REPLACE FUNCTION @claim(key text, token text, ttl interval, place_ttl interval DEFAULT NULL, permits integer DEFAULT 1, weight integer DEFAULT 1,
    fingerprint text DEFAULT NULL, max_age interval DEFAULT '0', at_most_once boolean DEFAULT false, owner text DEFAULT '',
    namespace text DEFAULT '', format text DEFAULT 'text',
    OUT state text, OUT fence bigint, OUT remaining interval, OUT ahead bigint, OUT attempt bigint, OUT record text, OUT age interval, OUT progress text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    p_k bytea := @key_of(namespace, key, format);
    p_token bytea := @token_of(token);
    p_ttl bigint := @span('ttl', ttl);
    p_mode bigint := CASE WHEN place_ttl IS NULL THEN 0 ELSE 1 END;
    p_place_ttl bigint := CASE WHEN place_ttl IS NULL THEN 0 ELSE @span('place_ttl', place_ttl) END;
    p_age bigint := @micros_of(max_age);
    p_owner bytea := substr(@bytes_of(owner, format), 1, 255);
    p_print bytea := '';
    plain boolean := false;
    r record;
BEGIN
    IF p_token = decode(repeat('00', 16), 'hex') THEN
        RAISE EXCEPTION 'dibs: the token is zero; new_token makes one' USING ERRCODE = 'invalid_parameter_value';
    ELSIF permits IS NULL OR permits NOT BETWEEN 1 AND 65536 OR weight IS NULL OR weight NOT BETWEEN 1 AND permits THEN
        RAISE EXCEPTION 'dibs: permits is % and weight %; they must be 1 to 65536, and 1 to permits', permits, weight USING ERRCODE = 'invalid_parameter_value';
    ELSIF at_most_once IS NULL OR at_most_once AND permits > 1 THEN
        RAISE EXCEPTION 'dibs: at_most_once is %, and permits %; it needs one permit', at_most_once, permits USING ERRCODE = 'invalid_parameter_value';
    ELSIF p_age IS NULL OR p_age < 0 THEN
        RAISE EXCEPTION 'dibs: max_age is %; it must be 0 to 292 years', max_age USING ERRCODE = 'invalid_parameter_value';
    ELSIF p_owner IS NULL THEN
        RAISE EXCEPTION 'dibs: owner is NULL; it can be empty' USING ERRCODE = 'invalid_parameter_value';
    ELSIF fingerprint !~ '^[0-9a-fA-F]{64}$' THEN
        RAISE EXCEPTION 'dibs: the fingerprint must be the 64 hexadecimal digits of a SHA-256' USING ERRCODE = 'invalid_parameter_value';
    ELSIF translate(fingerprint, '0', '') <> '' THEN -- zero is none
        p_print := decode(fingerprint, 'hex');
    END IF;
    IF permits = 1 THEN
        SELECT c.state, c.fence, c.remains, c.ahead, c.age, c.data, 1::bigint AS attempt, NULL::bytea AS progress INTO r
        FROM @claim_all(ARRAY[p_k], ARRAY[p_mode], ARRAY[p_token], ARRAY[p_ttl], ARRAY[p_place_ttl], ARRAY[p_age], ARRAY[at_most_once], ARRAY[p_print], ARRAY[p_owner], 0, 100000) AS c;
        plain := r.state <> -1;
    END IF;
    IF NOT plain THEN
        PERFORM @begin_verb();
        SELECT * INTO r FROM @claim_one(p_k, p_mode, p_token, p_ttl, p_place_ttl, p_age, at_most_once, p_print, p_owner, permits, weight, 100000);
    END IF;
    state := (ARRAY['granted', 'held', 'free', 'done', 'mismatch', 'unknown'])[r.state];
    fence := CASE WHEN r.state IN (1, 2) THEN r.fence END;
    attempt := CASE WHEN r.state = 1 THEN r.attempt END;
    ahead := CASE WHEN r.state = 2 THEN r.ahead END;
    remaining := CASE WHEN r.state IN (2, 4) THEN r.remains * interval '1 microsecond' END;
    age := CASE WHEN r.state = 4 THEN greatest(r.age, 0) * interval '1 microsecond' END;
    record := CASE WHEN r.state = 4 THEN @text_of(r.data, format) END;
    progress := CASE WHEN r.state = 1 THEN @text_of(r.progress, format) END;
END $$;
REVOKE EXECUTE ON FUNCTION @claim FROM PUBLIC;

-- renew makes a lease last ttl from now, and saves progress for the next holder, if there is any. It
-- raises DIBS1 if the token does not hold the key. While a transaction holds the lease by hold_in,
-- it is renewed all the same.
CREATE OR REPLACE FUNCTION @renew(key text, token text, ttl interval, progress text DEFAULT NULL, namespace text DEFAULT '', format text DEFAULT 'text')
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    p_k bytea := @key_of(namespace, key, format);
    p_token bytea := @token_of(token);
    p_ttl bigint := @span('ttl', ttl);
    p_progress bytea := @bytes_of(progress, format);
BEGIN
    IF octet_length(p_progress) > 1048576 THEN
        RAISE EXCEPTION 'dibs: the progress has % bytes; it may have at most 1048576', octet_length(p_progress) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM @renew_all(ARRAY[p_k], ARRAY[p_token], ARRAY[p_ttl], ARRAY[p_progress]);
    IF NOT FOUND THEN
        PERFORM @refuse(p_k, p_token);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION @renew FROM PUBLIC;

-- release ends a lease, or gives up a place in the queue, and hands the key over or wakes waiters. With data it
-- leaves the key's record, for as long as keep says. outcome is 'release'; 'abandon', so that the
-- next attempt has a higher number; or 'undo', as if the claim had not been. It raises DIBS1 if the
-- token has neither.
CREATE OR REPLACE FUNCTION @release(key text, token text, data text DEFAULT NULL, keep interval DEFAULT '24 hours', outcome text DEFAULT 'release',
    namespace text DEFAULT '', format text DEFAULT 'text')
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    p_k bytea := @key_of(namespace, key, format);
    p_token bytea := @token_of(token);
    p_data bytea := @bytes_of(data, format);
    p_outcome bigint := CASE WHEN data IS NOT NULL AND outcome = 'release' THEN 1 WHEN data IS NULL THEN array_position(ARRAY['release', '', 'abandon', 'undo'], outcome) - 1 END;
    p_keep bigint := CASE WHEN data IS NULL THEN 0 ELSE @span('keep', keep) END;
    n bigint;
BEGIN
    IF p_outcome IS NULL OR outcome = '' THEN
        RAISE EXCEPTION 'dibs: outcome is %; it must be release, or without data abandon or undo', coalesce(quote_literal(outcome), 'NULL') USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(p_data) > 67108864 THEN
        RAISE EXCEPTION 'dibs: the record has % bytes; it may have at most 67108864', octet_length(p_data) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT coalesce(max(s), 0) INTO n FROM @settle_all(ARRAY[p_k], ARRAY[p_token], ARRAY[p_outcome], ARRAY[p_keep], ARRAY[coalesce(p_data, '')], 1000000) AS s;
    IF n = 1 OR n = -1 AND @settle_one(p_k, p_token, p_outcome, p_keep, p_data) THEN
        RETURN;
    END IF;
    PERFORM @refuse(p_k, p_token);
END $$;
REVOKE EXECUTE ON FUNCTION @release FROM PUBLIC;

-- hold_in makes sure that the token holds the key until the transaction that calls it has
-- committed, and returns the lease's fence. It raises the errors of settle_in (DIBS1, 22023, 40001,
-- 55P03). It locks the row of the lease, so that no other token is granted the key before the
-- writes of this transaction are visible, even if the lease expires meanwhile. The lock is FOR KEY
-- SHARE: it passes renewals and new waiters, which lock FOR NO KEY UPDATE. All that ends a lease
-- locks FOR UPDATE first, waits 2 s for it, and then raises 55P03. The lock ends with a savepoint that is
-- rolled back, if the call came after the savepoint. With the ID of another store the function does
-- nothing and returns NULL.
CREATE OR REPLACE FUNCTION @hold_in(key text, token text, namespace text DEFAULT '', format text DEFAULT 'text', store text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    p_k bytea := @key_of(namespace, key, format);
    p_token bytea := @token_of(token);
    t record;
BEGIN
    IF store IS NOT NULL AND NOT EXISTS (SELECT FROM @meta m WHERE m.id::text = store) THEN
        RETURN NULL;
    END IF;
    SELECT x.fence, x.ends INTO t FROM @key x WHERE x.k = p_k AND x.token = p_token FOR KEY SHARE;
    IF NOT FOUND THEN -- a key with several permits
        SELECT h.fence, h.ends INTO t FROM @holder h WHERE h.k = p_k AND h.token = p_token AND NOT h.abandoned FOR KEY SHARE;
    END IF;
    IF t.ends > @now() THEN
        RETURN t.fence;
    END IF;
    PERFORM @refuse(p_k, p_token);
END $$;
REVOKE EXECUTE ON FUNCTION @hold_in FROM PUBLIC;
