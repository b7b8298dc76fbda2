-- The schema of a dibs store, version 2. @ is the prefix of the tables: none, or dibs_ in
-- a file of the application (Options.Shared).
--
-- Times are µs of store time, which starts at 0 when the file is created and never goes
-- backwards. A k is the length of the namespace in one byte, the namespace, and the name,
-- so no two keys share one.

-- One row. Every transaction reads it first, and writes it last if it changed anything.
CREATE TABLE @meta (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL, -- of this schema
    boot    BLOB    NOT NULL, -- the boot of the host to which offset belongs
    offset  INTEGER NOT NULL, -- store time - the host's time since boot
    clock   INTEGER NOT NULL, -- store time of the last write
    fence   INTEGER NOT NULL  -- the highest fence so far
) STRICT;

-- Leases, and the last abandoned lease of each key. The columns are those of engine.Lease.
CREATE TABLE @lease (
    k           BLOB    NOT NULL,
    token       BLOB    NOT NULL,
    abandoned   INTEGER NOT NULL, -- 1: the last abandoned lease; attempt is how many there were in a row
    fence       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    ends        INTEGER NOT NULL, -- 0: a transaction of the application settled it
    once        INTEGER NOT NULL, -- 1: at most once
    seq         INTEGER NOT NULL, -- of the reserved place at which it was granted; 0: none
    inherits    INTEGER NOT NULL, -- the fence of the progress that it inherits; 0: none
    permits     INTEGER NOT NULL,
    weight      INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL, -- empty: none
    owner       BLOB    NOT NULL,
    PRIMARY KEY (k, token, abandoned)
) STRICT, WITHOUT ROWID;

-- The last progress that was saved under each fence, while a lease has or inherits it.
CREATE TABLE @progress (
    k     BLOB    NOT NULL,
    fence INTEGER NOT NULL,
    data  BLOB    NOT NULL,
    PRIMARY KEY (k, fence)
) STRICT, WITHOUT ROWID;

-- Since when a reserved place has blocked a claim that has room.
CREATE TABLE @idle (
    k     BLOB    NOT NULL PRIMARY KEY,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The places in a key's queue. A reserved place and its waiters have one number. The columns
-- are those of engine.Place.
CREATE TABLE @place (
    k           BLOB    NOT NULL,
    seq         INTEGER NOT NULL, -- the number
    token       BLOB    NOT NULL,
    kind        INTEGER NOT NULL, -- 0: a waiter; 1: a reserved place
    ends        INTEGER NOT NULL,
    owner       BLOB    NOT NULL,
    ttl         INTEGER NOT NULL, -- this and the next six: of a waiter
    permits     INTEGER NOT NULL,
    weight      INTEGER NOT NULL,
    once        INTEGER NOT NULL,
    max_age     INTEGER NOT NULL,
    process     INTEGER NOT NULL, -- 0, because grants are not pushed
    fingerprint BLOB    NOT NULL,
    grace       INTEGER NOT NULL, -- how long a reserved place may block an idle key; 0: no limit
    asked       INTEGER NOT NULL, -- when a reserved place was claimed last
    PRIMARY KEY (k, seq, token)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX @place_token ON @place (k, token);

-- Records. The id is the record's end times 1024 plus a serial number, so pruning reads the
-- table from its beginning and needs no second index. The data is last, so the other
-- columns are read without it.
CREATE TABLE @record (
    id          INTEGER PRIMARY KEY,
    k           BLOB    NOT NULL UNIQUE,
    token       BLOB    NOT NULL,
    written     INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL,
    data        BLOB    NOT NULL
) STRICT;

-- Tokens that should ask again, for other processes.
CREATE TABLE @wake (
    seq   INTEGER PRIMARY KEY,
    token BLOB NOT NULL
) STRICT;
