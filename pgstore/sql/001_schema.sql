-- The tables of a dibs store, version 1. @name stands for the schema and the
-- prefix that the store has, such as "public"."dibs_name".
--
-- A k is the length of the namespace in one byte, the namespace, and the name, so
-- that no two keys share one. All times are the server's, in microseconds since 1970.
-- What is not there is 0 or ''. What has ended is dead although it still stands: whoever
-- asks next puts that down, or pruning does.

-- One row: what there is to know of the store.
CREATE TABLE @meta (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,     -- of these tables and functions
    id      uuid NOT NULL DEFAULT gen_random_uuid(), -- tells it from the stores of other databases
    fence   bigint NOT NULL,      -- no row of @key that was deleted had a higher one
    swept   bigint NOT NULL       -- when somebody last began to go through all keys
);
INSERT INTO @meta (version, fence, swept) VALUES (1, 0, 0);

-- One row for each key that is in use, or was a moment ago. It is what the verbs
-- lock, and its fence is why it stays for a moment: fences of a key must rise, and
-- whoever makes a new row cannot know of the one that was there before.
CREATE TABLE @key (
    k               bytea PRIMARY KEY,
    fence           bigint NOT NULL,                 -- the highest that was given for the key; 0: none yet
    busy            boolean NOT NULL DEFAULT false,  -- there is more to know than this row, but for reserved places
    idle_since      bigint NOT NULL DEFAULT 0,       -- since when a reserved place keeps others from room that there is
    -- the lease of a key with one permit; what is here without a token has no meaning
    token           bytea NOT NULL DEFAULT '',
    attempt         bigint NOT NULL DEFAULT 0,       -- 1 + how many leases in a row were abandoned before
    since           bigint NOT NULL DEFAULT 0,
    ends            bigint NOT NULL DEFAULT 0,       -- 0: it was settled in a transaction of the application's
    once            boolean NOT NULL DEFAULT false,  -- at most once: the outcome is unknown if it runs out
    seq             bigint NOT NULL DEFAULT 0,       -- of the reserved place at which it was granted
    inherits            bigint NOT NULL DEFAULT 0,       -- of what was saved under that fence
    fingerprint     bytea NOT NULL DEFAULT '',
    owner           bytea NOT NULL DEFAULT '',
    -- what the last holder left behind
    rec_token       bytea NOT NULL DEFAULT '',
    rec_written     bigint NOT NULL DEFAULT 0,
    rec_ends        bigint NOT NULL DEFAULT 0,       -- 0: there is none
    rec_fingerprint bytea NOT NULL DEFAULT '',
    rec_data        bytea
) WITH (
    fillfactor = 60, -- so that taking and ending a lease stays on its page, and out of the index
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000
);

-- The leases of keys with more than one permit, and of each key the last lease that was
-- abandoned, until one ends cleanly.
CREATE TABLE @holder (
    k           bytea NOT NULL,
    token       bytea NOT NULL,
    abandoned   boolean NOT NULL, -- its attempt is how many were, in a row
    fence       bigint NOT NULL,
    attempt     bigint NOT NULL,
    since       bigint NOT NULL,
    ends        bigint NOT NULL,
    once        boolean NOT NULL,
    seq         bigint NOT NULL,
    inherits        bigint NOT NULL,
    permits     bigint NOT NULL,
    weight      bigint NOT NULL,
    fingerprint bytea NOT NULL,
    owner       bytea NOT NULL,
    PRIMARY KEY (k, token, abandoned)
) WITH (fillfactor = 70);

-- The places in a key's queue, in the order of seq. A reserved place and those who wait
-- at it share one.
CREATE TABLE @waiter (
    k           bytea NOT NULL,
    seq         bigint NOT NULL,
    token       bytea NOT NULL,
    kind        bigint NOT NULL,  -- 0 waits, 1 reserved
    ends        bigint NOT NULL,
    owner       bytea NOT NULL,
    -- of who waits: its claim
    ttl         bigint NOT NULL,
    permits     bigint NOT NULL,
    weight      bigint NOT NULL,
    once        boolean NOT NULL,
    max_age     bigint NOT NULL,  -- of a record that answers it; 0: none does
    process     bigint NOT NULL,  -- that listens for it; 0: none does
    fingerprint bytea NOT NULL,
    -- of a reserved place
    hold        bigint NOT NULL,  -- how long it may keep others from room that there is; 0: until it ends
    asked       bigint NOT NULL,  -- when it was asked for last
    PRIMARY KEY (token, k) -- in that order, so that no queue is gone through by way of it
) WITH (fillfactor = 70);
CREATE INDEX @waiter_seq ON @waiter (k, seq);

-- Numbers of places. A transaction on keys may give as many as there are to the next one.
CREATE SEQUENCE @number INCREMENT 1024;

-- What leases saved, apart from them because it can be large.
CREATE TABLE @progress (
    k     bytea NOT NULL,
    fence bigint NOT NULL, -- of the lease
    data  bytea NOT NULL,
    PRIMARY KEY (k, fence)
);
