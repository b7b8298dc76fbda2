-- Functions for transactions of the application, in any language. They are a public interface:
-- names, parameters, defaults and SQLSTATEs stay. Their user needs EXECUTE and no rights on the
-- tables, and its search_path and settings do not matter.

-- bytes_of reads a parameter.
CREATE OR REPLACE FUNCTION @bytes_of(value text, format text) RETURNS bytea LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF format = 'text' THEN
        RETURN convert_to(value, 'UTF8');
    ELSIF format = 'base64' THEN
        RETURN decode(value, 'base64');
    END IF;
    RAISE EXCEPTION 'dibs: the format is %; it must be text or base64', coalesce(quote_literal(format), 'NULL') USING ERRCODE = 'invalid_parameter_value';
END $$;

-- key_of returns the form of a key in the tables.
CREATE OR REPLACE FUNCTION @key_of(namespace text, name text, format text) RETURNS bytea LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    k bytea := @bytes_of(name, format);
BEGIN
    IF k IS NULL OR octet_length(k) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'dibs: the key has % bytes; it must have 1 to 512', coalesce(octet_length(k), 0) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF namespace IS NULL OR octet_length(namespace) > 64 OR namespace COLLATE "C" ~ '[^!-~]' THEN
        RAISE EXCEPTION 'dibs: the namespace must be at most 64 characters of printable ASCII without spaces' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN set_byte('\x00', 0, octet_length(namespace)) || convert_to(namespace, 'UTF8') || k;
END $$;

-- token_of reads a token.
CREATE OR REPLACE FUNCTION @token_of(token text) RETURNS bytea LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF token IS NULL OR token !~ '^[0-9a-fA-F]{32}$' THEN
        RAISE EXCEPTION 'dibs: the token must be the 32 hexadecimal digits of the claim' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN decode(token, 'hex');
END $$;

-- new_token returns a new token: 32 hexadecimal digits, to keep secret.
CREATE OR REPLACE FUNCTION @new_token() RETURNS text LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT encode(substr(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 1, 16), 'hex') $$;
REVOKE EXECUTE ON FUNCTION @new_token FROM PUBLIC;

-- micros_of reads a duration. It returns NULL for one that is longer than a store keeps anything.
CREATE OR REPLACE FUNCTION @micros_of(value interval) RETURNS bigint LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE WHEN extract(epoch FROM value) BETWEEN -9223372037 AND 9223372037 THEN (extract(epoch FROM value) * 1000000)::bigint END $$;

-- refuse raises that a token does not hold a key, with what was found; or, in a transaction whose
-- snapshot may be too old to show the lease, that.
CREATE OR REPLACE FUNCTION @refuse(p_k bytea, p_token bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    t record;
BEGIN
    SELECT x.token, x.ends, x.rec_token INTO t FROM @key x WHERE x.k = p_k;
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        BEGIN -- a row that the snapshot does not show is a conflict; what is inserted goes with the error below
            INSERT INTO @key (k, fence) VALUES (p_k, 0) ON CONFLICT DO NOTHING;
            INSERT INTO @holder (k, token, abandoned, fence, attempt, since, ends, once, seq, inherits, permits, weight, fingerprint, owner)
            VALUES (p_k, p_token, false, 0, 0, 0, 0, false, 0, 0, 1, 1, '', '') ON CONFLICT DO NOTHING;
        EXCEPTION WHEN serialization_failure THEN
            RAISE EXCEPTION 'dibs: the snapshot of this transaction is older than the claim, or than a renewal, so it does not show the lease as it is' USING ERRCODE = 'serialization_failure',
                HINT = 'Claim before the first statement of the transaction, or roll it back and run it again.';
        END;
    END IF;
    RAISE EXCEPTION 'dibs: the lease is lost' USING ERRCODE = 'DIBS1', DETAIL = CASE
        WHEN t.token IS NULL THEN 'This store has no such key. The lease is of another store (database, schema, prefix) or namespace, or it was lost long ago.'
        WHEN t.rec_token = p_token OR t.token = p_token AND t.ends = 0 THEN 'It was settled before.'
        WHEN t.token = p_token THEN 'It has expired.'
        ELSE 'The token does not hold the key: the lease expired, was settled before or was taken away.' END;
END $$;

-- wake has waiters of a key ask: one of each process, or all of them, among the first 64.
CREATE OR REPLACE FUNCTION @wake(p_k bytea, everyone boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(@channel(n.process), encode(n.token, 'hex')) FROM (
        SELECT w.process, w.token, row_number() OVER (PARTITION BY w.process ORDER BY w.seq) AS n FROM (
            SELECT * FROM @waiter w WHERE w.k = p_k AND w.kind = 0 AND w.process <> 0 AND w.ends > @now() ORDER BY w.seq LIMIT 64
        ) w
    ) n WHERE n.n = 1 OR everyone;
END $$;

-- settle_in ends the lease of a key together with the transaction that calls it, as its last
-- statement. It leaves data as the key's record, for as long as keep says; without data it leaves
-- nothing. It raises
--
--   DIBS1  the token does not hold the key. DETAIL says what was found.
--   DIBS2  this is not the transaction with the effect. See proof.
--   DIBS3  proof is 'deferrable' and all transactions of the session are.
--   DIBS4  a record of a key with several permits.
--   22023  a parameter that no store accepts, such as a record of more than 64 MiB.
--   40001  the transaction's snapshot is older than the claim, or than a renewal. Run it again.
--   55P03  another transaction kept the key's row locked for 2 s.
--
-- so that the transaction rolls back.
--
-- namespace is that of the key. format is that of key and data: 'text' (UTF-8), or 'base64' for
-- bytes. proof is how the function recognizes the transaction with the effect:
--
--   'written'     it has written something before. So a statement that commits by itself is refused.
--   'marked'      it began with SET LOCAL dibs.run = 'on'.
--   'deferrable'  it began as DEFERRABLE, which has no effect in a transaction that writes.
--   'caller'      the caller knows it, for example from the driver.
--
-- If other tables have rows of the key, the lease stays and is marked as settled. The next
-- transaction on the key does the rest, because this one may have a snapshot and not see these
-- rows. settle_in wakes one waiter of each process. It returns whether there may be waiters that
-- it does not see. They find out by themselves.
CREATE OR REPLACE FUNCTION @settle_in(key text, token text, data text DEFAULT NULL, keep interval DEFAULT '24 hours',
    namespace text DEFAULT '', format text DEFAULT 'text', proof text DEFAULT 'written')
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    p_k bytea := @key_of(namespace, key, format);
    p_token bytea := @token_of(token);
    p_data bytea := @bytes_of(data, format);
    p_retention bigint := @micros_of(keep);
    p_keeps boolean := data IS NOT NULL;
    t record;
    moment bigint;
    print bytea;
    permits bigint;
    many boolean := false;
BEGIN
    IF p_keeps AND (p_retention IS NULL OR p_retention < 1000) THEN
        RAISE EXCEPTION 'dibs: keep is %; a record is kept for at least 1 ms and at most 292 years', coalesce(keep::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(p_data) > 67108864 THEN
        RAISE EXCEPTION 'dibs: the record has % bytes; it may have at most 67108864', octet_length(p_data) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF proof IS NULL OR proof NOT IN ('written', 'marked', 'deferrable', 'caller') THEN
        RAISE EXCEPTION 'dibs: proof is %; it must be written, marked, deferrable or caller', coalesce(quote_literal(proof), 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF proof = 'written' AND pg_current_xact_id_if_assigned() IS NULL THEN
        RAISE EXCEPTION 'dibs: this transaction has written nothing, so it is not the one with the effect' USING ERRCODE = 'DIBS2',
            HINT = 'Begin a transaction, write in it, and call this function as its last statement. If it may have nothing to write, begin it with SET LOCAL dibs.run = ''on'' and pass proof => ''marked''.';
    END IF;
    IF proof IN ('marked', 'deferrable')
        AND current_setting(CASE proof WHEN 'marked' THEN 'dibs.run' ELSE 'transaction_deferrable' END, true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'dibs: this is not the transaction that was begun for the run' USING ERRCODE = 'DIBS2',
            HINT = 'The run has sent COMMIT or ROLLBACK. Remove that statement: the caller of the run commits it, and rolls it back after an error.';
    END IF;
    IF proof = 'deferrable' AND current_setting('default_transaction_deferrable') = 'on' THEN
        RAISE EXCEPTION 'dibs: all transactions are DEFERRABLE here, so this one must be marked' USING ERRCODE = 'DIBS3';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT x.busy, x.token, x.ends, x.fingerprint INTO t FROM @key x WHERE x.k = p_k FOR UPDATE;
    moment := @now();
    print := t.fingerprint;
    IF t.token IS DISTINCT FROM p_token OR t.ends <= moment THEN
        UPDATE @holder h SET ends = 0
        WHERE h.k = p_k AND h.token = p_token AND NOT h.abandoned AND h.ends > moment
        RETURNING h.fingerprint, h.permits, true INTO print, permits, many;
        IF many IS NOT TRUE THEN
            PERFORM @refuse(p_k, p_token);
        END IF;
        IF p_keeps AND permits > 1 THEN
            RAISE EXCEPTION 'dibs: a key with several permits cannot have a record; call settle_in without data' USING ERRCODE = 'DIBS4';
        END IF;
    END IF;
    UPDATE @key x SET
        ends = CASE WHEN many THEN x.ends ELSE 0 END,
        token = CASE WHEN many OR x.busy THEN x.token ELSE '' END,
        rec_token = CASE WHEN p_keeps THEN p_token ELSE x.rec_token END,
        rec_written = CASE WHEN p_keeps THEN moment ELSE x.rec_written END,
        rec_ends = CASE WHEN p_keeps THEN moment + p_retention ELSE x.rec_ends END,
        rec_fingerprint = CASE WHEN p_keeps THEN print ELSE x.rec_fingerprint END,
        rec_data = CASE WHEN p_keeps THEN p_data ELSE x.rec_data END,
        listed = NOT p_keeps AND x.rec_ends = 0 OR x.token <> '' AND (many OR x.busy)
    WHERE x.k = p_k;
    IF t.busy THEN
        PERFORM @wake(p_k, false);
    END IF;
    RETURN t.busy AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted');
END $$;
REVOKE EXECUTE ON FUNCTION @settle_in FROM PUBLIC;

-- ticket_part writes bytes as base64url without padding.
CREATE OR REPLACE FUNCTION @ticket_part(b bytea) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT translate(encode(b, 'base64'), E'+/=\n', '-_') $$;

-- reserve_in reserves a place in the key's queue, which exists when the transaction commits, and
-- returns its ticket: a text to keep secret, which every client redeems. The place lasts for place_ttl.
-- A free key waits for it for at most grace; without grace, as long as the place lasts. owner
-- (HOST PID PURPOSE) is for people to read. format is that of key and owner. The function locks no
-- rows of a key. Errors have the SQLSTATE 22023.
--
-- A caller that makes its own tickets gives the token. The place of a token that has one lasts for
-- place_ttl from now. With the ID of another store the function does nothing and returns NULL.
CREATE OR REPLACE FUNCTION @reserve_in(key text, place_ttl interval DEFAULT '7 days', grace interval DEFAULT NULL,
    namespace text DEFAULT '', owner text DEFAULT '', format text DEFAULT 'text', token text DEFAULT NULL, store text DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    p_k bytea := @key_of(namespace, key, format);
    p_token bytea := @token_of(coalesce(token, @new_token()));
    p_place_ttl bigint := @micros_of(place_ttl);
    p_grace bigint := CASE WHEN grace IS NULL THEN 0 ELSE @micros_of(grace) END;
    moment bigint := @now();
BEGIN
    IF store IS NOT NULL AND NOT EXISTS (SELECT FROM @meta m WHERE m.id::text = store) THEN
        RETURN NULL;
    END IF;
    IF p_place_ttl IS NULL OR p_place_ttl < 1000 THEN
        RAISE EXCEPTION 'dibs: place_ttl is %; a place lasts for at least 1 ms and at most 292 years', coalesce(place_ttl::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF p_grace IS NULL OR p_grace < 0 THEN
        RAISE EXCEPTION 'dibs: grace is %; it must be from 0 to 292 years, not negative', grace USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF p_token = decode(repeat('00', 16), 'hex') THEN
        RAISE EXCEPTION 'dibs: the token is zero; no claim has it' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF owner IS NULL THEN
        RAISE EXCEPTION 'dibs: owner is NULL; it can be empty' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO @waiter AS w (k, seq, token, kind, ends, owner, ttl, permits, weight, once, max_age, process, fingerprint, grace, asked)
    VALUES (p_k, nextval('@number'), p_token, 1, moment + p_place_ttl, substr(@bytes_of(owner, format), 1, 255),
        0, 0, 0, false, 0, 0, '', p_grace, moment)
    ON CONFLICT ON CONSTRAINT @@_waiter_pkey DO UPDATE SET ends = excluded.ends, grace = excluded.grace, asked = excluded.asked;
    RETURN 'dibs1.' || @ticket_part(p_token) || '.' || @ticket_part(convert_to(namespace, 'UTF8')) || '.' || @ticket_part(@bytes_of(key, format));
END $$;
REVOKE EXECUTE ON FUNCTION @reserve_in FROM PUBLIC;
