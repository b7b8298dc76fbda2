-- The tables of a dibs store, version 1. @name stands for the schema and the
-- prefix that the store has, such as "public"."dibs_name".
--
-- A k is the length of the namespace in one byte, the namespace, and the name, so
-- that no two keys share one. All times are the server's. What has ended is dead
-- although it still stands here: whoever asks next puts that down, or pruning
-- does.

-- One row: what there is to know of the store.
CREATE TABLE @meta (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,     -- of these tables and functions
    id      uuid NOT NULL DEFAULT gen_random_uuid(), -- tells it from the stores of other databases
    fence   bigint NOT NULL,      -- no row of @key that was deleted had a higher one
    swept   timestamptz NOT NULL  -- when somebody last began to go through all keys
);
INSERT INTO @meta (version, fence, swept) VALUES (1, 0, '-infinity');

-- One row for each key that is in use, or was a moment ago. It is what the verbs
-- lock, and its fence is why it stays for a moment: fences of a key must rise, and
-- whoever makes a new row cannot know of the one that was there before.
CREATE TABLE @key (
    k                bytea PRIMARY KEY,
    fence            bigint NOT NULL,  -- the highest that was given for the key
    permits          integer NOT NULL, -- what holders and places agreed on
    busy             boolean NOT NULL, -- there is more to know than one plain lease and the record
    queued           boolean NOT NULL, -- @waiter may have something
    saved            boolean NOT NULL, -- @progress has something
    -- the lease, or the offer, of a key with one permit
    token            bytea,
    attempt          integer,          -- 1 + how many leases in a row were abandoned before
    since            timestamptz,
    ends             timestamptz,
    offered          boolean,          -- until it is confirmed; nothing is abandoned if it runs out
    once             boolean,          -- at most once: the outcome is unknown if it runs out
    inherits         boolean,          -- there is progress of those before it
    seq              bigint,           -- of the reserved place that it has taken
    fingerprint      bytea,
    owner            bytea,
    -- how many leases in a row were abandoned, and the last of them until it has a
    -- successor
    abandoned        integer NOT NULL,
    lost_token       bytea,
    lost_fence       bigint,
    lost_attempt     integer,
    lost_since       timestamptz,
    lost_ends        timestamptz,
    lost_once        boolean,          -- the outcome is unknown, until somebody resolves it
    lost_inherits    boolean,
    lost_fingerprint bytea,
    lost_owner       bytea,
    -- what the last holder left behind
    rec_token        bytea,
    rec_written      timestamptz,
    rec_ends         timestamptz,
    rec_fingerprint  bytea,
    rec_data         bytea
) WITH (
    fillfactor = 60, -- so that taking and ending a lease stays on its page, and out of the index
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000
);
CREATE INDEX @key_record ON @key (rec_ends) WHERE rec_ends IS NOT NULL;

-- The leases, and offers, of keys with more than one permit.
CREATE TABLE @holder (
    k           bytea NOT NULL,
    token       bytea NOT NULL,
    fence       bigint NOT NULL,
    attempt     integer NOT NULL,
    since       timestamptz NOT NULL,
    ends        timestamptz NOT NULL,
    offered     boolean NOT NULL,
    once        boolean NOT NULL,
    inherits    boolean NOT NULL,
    seq         bigint,
    fingerprint bytea,
    owner       bytea NOT NULL,
    PRIMARY KEY (k, token)
) WITH (fillfactor = 70);

-- Who waits for a key, in the order of seq.
CREATE TABLE @waiter (
    k           bytea NOT NULL,
    seq         bigint NOT NULL,
    token       bytea NOT NULL,
    kind        smallint NOT NULL, -- 0 waits
                                   -- 1 reserved: it is not granted in its absence
                                   -- 2 reserved, and told that its turn has come
                                   -- 3 taken by the lease with that seq: it is in nobody's way,
                                   --   and stands again if that does not end cleanly
                                   -- 4 taken, and somebody waits for the end of the lease
    parked      boolean NOT NULL,  -- nobody listened as its turn came: it is passed over until it asks
    ends        timestamptz NOT NULL,
    lasts       interval NOT NULL, -- from when it was last asked for
    hold        interval NOT NULL, -- how long a reserved one may keep others from the key; 0: while it stands
    pressed     boolean NOT NULL,  -- it has begun to do so, and ends for that
    once        boolean NOT NULL,
    max_age     interval NOT NULL, -- of a record that answers it; 0: none does
    process     bigint,            -- that listens for it
    tells       boolean NOT NULL,  -- whether a grant may be told with all that is to know of it
    fingerprint bytea,
    owner       bytea NOT NULL,
    PRIMARY KEY (k, seq),
    UNIQUE (token, k) -- in that order, so that no queue is gone through by way of it
) WITH (fillfactor = 70);

-- What leases saved, apart from them because it can be large. What is passed on by
-- those that were abandoned has an empty token.
CREATE TABLE @progress (
    k     bytea NOT NULL,
    token bytea NOT NULL,
    data  bytea NOT NULL,
    PRIMARY KEY (k, token)
);

-- The functions' own types.

-- A lease, or an offer, as the functions see it.
CREATE TYPE @lease AS (
    token bytea, fence bigint, attempt integer, since timestamptz, ends timestamptz, offered boolean,
    once boolean, inherits boolean, seq bigint, fingerprint bytea, owner bytea
);

-- What a claim got. state is dibs.State, or 0 when the queue is full; a time is in
-- microseconds.
CREATE TYPE @answer AS (
    i       integer,  -- which one
    state   smallint,
    fence   bigint,   -- granted; held: no grant so far is above
    attempt integer,  -- granted
    remains bigint,   -- held, done
    ahead   integer,  -- held
    queued  boolean,  -- held
    idle    boolean,  -- held: a permit is free, and somebody's reserved place is in the way
    age     bigint,   -- done
    permits integer,  -- permits differ
    data    bytea     -- granted: progress; done: the record; unknown: the token
);

-- A claim.
CREATE TYPE @ask AS (
    i integer, k bytea, mode smallint, token bytea, redeems bytea, ttl interval, place interval,
    hold interval, permits integer, max_age interval, once boolean, fingerprint bytea, owner bytea,
    process bigint, tells boolean, most integer
);

-- What transactions of applications reserve, until just before they commit: then the
-- places are taken and the rows are gone, so that nobody ever sees another's. As none
-- outlives its transaction, they are not in the write-ahead log.
CREATE UNLOGGED TABLE @pending (
    tx     xid8 NOT NULL,
    n      integer NOT NULL, -- which one of the transaction
    claims @ask[] NOT NULL,
    PRIMARY KEY (tx, n)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    vacuum_truncate = off -- the room is used again at once
);

-- A key that is being worked on: its row, which is locked, but for the record's
-- data; who holds it; and what the claim is answered.
CREATE TYPE @state AS (
    k bytea, fence bigint, permits integer, queued boolean, saved boolean, abandoned integer,
    holders @lease[], lost @lease,
    rec_token bytea, rec_written timestamptz, rec_ends timestamptz, rec_fingerprint bytea,
    now timestamptz, -- one moment for all that is done
    changed boolean, -- the row has to be written
    answer @answer
);
