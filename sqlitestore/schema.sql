-- The schema of a dibs store, version 1. @ is the prefix of the tables: none, or dibs_ in
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

-- Leases. The last two columns can be large.
CREATE TABLE @lease (
    k           BLOB    NOT NULL,
    token       BLOB    NOT NULL,
    until       INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    permits     INTEGER NOT NULL,
    weight      INTEGER NOT NULL,
    number      INTEGER NOT NULL, -- of the reserved place at which it was granted; 0: none
    once        INTEGER NOT NULL, -- 1: at most once
    fingerprint BLOB    NOT NULL, -- empty: none
    owner       BLOB    NOT NULL,
    inherited   BLOB,             -- the progress of earlier attempts
    progress    BLOB,             -- the progress of this attempt
    PRIMARY KEY (k, token)
) STRICT, WITHOUT ROWID;

-- What a key keeps between its leases: the abandoned row, and since when a reserved place
-- has blocked a claim.
CREATE TABLE @memory (
    k           BLOB    NOT NULL PRIMARY KEY,
    free        INTEGER,          -- since when a reserved place has blocked a claim that has room
    count       INTEGER NOT NULL, -- leases abandoned in a row; the next columns are of the last one
    token       BLOB    NOT NULL,
    until       INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    once        INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL,
    owner       BLOB    NOT NULL,
    progress    BLOB              -- the last progress
) STRICT, WITHOUT ROWID;

-- The places in a key's queue. A reserved place and its waiters have one number.
CREATE TABLE @place (
    k        BLOB    NOT NULL,
    number   INTEGER NOT NULL,
    token    BLOB    NOT NULL,
    reserved INTEGER NOT NULL, -- 1: a reserved place; 0: a waiter
    until    INTEGER NOT NULL,
    permits  INTEGER NOT NULL, -- this and the next two: of a waiter
    weight   INTEGER NOT NULL,
    max_age  INTEGER NOT NULL,
    hold     INTEGER NOT NULL, -- of a reserved place: its Hold; 0: none
    asked    INTEGER NOT NULL, -- when its token last asked for it
    owner    BLOB    NOT NULL,
    PRIMARY KEY (k, number, token)
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
