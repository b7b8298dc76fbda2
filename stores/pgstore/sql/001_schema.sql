-- The tables of a dibs store, version 1. @name stands for a name with the store's schema and
-- prefix, such as "public"."dibs_name".
--
-- A k is the length of the namespace in one byte, the namespace, and the name, so that no two
-- keys share a k. All times are the server's, in microseconds since 1970. What does not exist is
-- 0 or ''. Rows that have expired stay until the next call about the key, or pruning, deletes
-- them.

-- One row: the store.
CREATE TABLE @meta (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,     -- of these tables and functions
    id      uuid NOT NULL DEFAULT gen_random_uuid(), -- differs from the stores of other databases
    fence   bigint NOT NULL,      -- at least the fence of every row of @key that was deleted
    swept   bigint NOT NULL       -- when a process last began a sweep
);
INSERT INTO @meta (version, fence, swept) VALUES (1, 0, 0);

-- One row for each key that is in use, or was a minute ago. Calls lock it. It stays for a while,
-- because its next claim is cheaper then.
CREATE TABLE @key (
    k               bytea PRIMARY KEY,
    fence           bigint NOT NULL,                 -- the highest of the key; 0: none yet
    busy            boolean NOT NULL DEFAULT false,  -- other tables have rows of the key; reserved places alone do not count
    idle_since      bigint NOT NULL DEFAULT 0,       -- since when a reserved place has blocked the idle key
    -- the lease of a key with one permit; without a token these columns have no meaning
    token           bytea NOT NULL DEFAULT '',
    attempt         bigint NOT NULL DEFAULT 0,       -- 1 + the number of leases abandoned in a row before
    since           bigint NOT NULL DEFAULT 0,
    ends            bigint NOT NULL DEFAULT 0,       -- 0: a transaction of the application settled it
    once            boolean NOT NULL DEFAULT false,  -- at most once: the outcome is unknown if it expires
    seq             bigint NOT NULL DEFAULT 0,       -- the number of the reserved place at which it was granted
    inherits        bigint NOT NULL DEFAULT 0,       -- the fence under which the progress was saved that it inherits
    fingerprint     bytea NOT NULL DEFAULT '',
    owner           bytea NOT NULL DEFAULT '',
    -- the record
    rec_token       bytea NOT NULL DEFAULT '',
    rec_written     bigint NOT NULL DEFAULT 0,
    rec_ends        bigint NOT NULL DEFAULT 0,       -- 0: there is none
    rec_fingerprint bytea NOT NULL DEFAULT '',
    rec_data        bytea,
    -- rec_ends = 0 OR token <> '': false of a key with nothing but a record, as most are. A lock
    -- leaves it as it is, so its index costs a lock nothing. Not GENERATED, because that would
    -- cost each lock a sixth more time of the server.
    listed          boolean NOT NULL DEFAULT true
) WITH (
    fillfactor = 60, -- so that taking and ending a lease stays on its page, and out of the index
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000
);

CREATE INDEX @key_listed ON @key (k) WHERE listed;

-- The leases of keys with more than one permit. Also the last abandoned lease of each key, until
-- a lease is released or completed.
CREATE TABLE @holder (
    k           bytea NOT NULL,
    token       bytea NOT NULL,
    abandoned   boolean NOT NULL, -- then attempt is how many were, in a row
    fence       bigint NOT NULL,
    attempt     bigint NOT NULL,
    since       bigint NOT NULL,
    ends        bigint NOT NULL,
    once        boolean NOT NULL,
    seq         bigint NOT NULL,
    inherits    bigint NOT NULL,
    permits     bigint NOT NULL,
    weight      bigint NOT NULL,
    fingerprint bytea NOT NULL,
    owner       bytea NOT NULL,
    PRIMARY KEY (k, token, abandoned)
) WITH (fillfactor = 70);

-- The places of a key's queue, in the order of seq. A reserved place and the waiters that claim
-- from it have the same seq.
CREATE TABLE @waiter (
    k           bytea NOT NULL,
    seq         bigint NOT NULL,
    token       bytea NOT NULL,
    kind        bigint NOT NULL,  -- 0 waits, 1 reserved, 2 keeps the number of a waiter of a process that relays
    ends        bigint NOT NULL,
    owner       bytea NOT NULL,
    -- of a waiter: its claim
    ttl         bigint NOT NULL,
    permits     bigint NOT NULL,
    weight      bigint NOT NULL,
    once        boolean NOT NULL,
    max_age     bigint NOT NULL,  -- of a record that answers it; 0: no record does
    process     bigint NOT NULL,  -- that its grant is pushed to, negative if it relays; 0: it is woken
    fingerprint bytea NOT NULL,
    -- of a reserved place
    grace       bigint NOT NULL,  -- how long it may block an idle key; 0: until it expires. Of a waiter: the new grace of its reserved place; 0: no new one
    asked       bigint NOT NULL,  -- when it was claimed last
    PRIMARY KEY (token, k) -- in that order, so that no plan reads a queue by this index
) WITH (fillfactor = 70);
CREATE INDEX @waiter_seq ON @waiter (k, seq);

-- Numbers of places. A transaction may use the numbers up to the next multiple.
CREATE SEQUENCE @number INCREMENT 1024;

-- The progress that leases saved, in a table of its own because it can be large.
CREATE TABLE @progress (
    k     bytea NOT NULL,
    fence bigint NOT NULL, -- of the lease that saved it
    data  bytea NOT NULL,
    PRIMARY KEY (k, fence)
);
