-- The schema of a dibs store, version 1. @ stands for the prefix of the tables: none,
-- or dibs_ in a file of the application's (Options.Shared).
--
-- Times are microseconds of store time, which starts at 0 when the file is made
-- and never goes backwards. A k is the length of the namespace in one byte, the
-- namespace, and the name, so that no two keys share one.

-- One row: what every transaction reads first, and writes last if it changed
-- anything.
CREATE TABLE @meta (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL, -- of this schema
    boot    BLOB    NOT NULL, -- which boot of which host the offset is for
    offset  INTEGER NOT NULL, -- store time - the host's time since boot
    clock   INTEGER NOT NULL, -- the last store time that was seen
    fence   INTEGER NOT NULL  -- the highest fence ever given
) STRICT;

-- Who holds a key. The two last ones can be large.
CREATE TABLE @lease (
    k           BLOB    NOT NULL,
    token       BLOB    NOT NULL,
    until       INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    permits     INTEGER NOT NULL,
    weight      INTEGER NOT NULL,
    number      INTEGER NOT NULL, -- of the reserved place that it was granted at; 0: none
    once        INTEGER NOT NULL, -- 1: at most once
    fingerprint BLOB    NOT NULL, -- empty: none
    owner       BLOB    NOT NULL,
    told        BLOB,             -- the progress of those before it
    progress    BLOB,             -- what it saved itself
    PRIMARY KEY (k, token)
) STRICT, WITHOUT ROWID;

-- What is remembered of a key between its leases.
CREATE TABLE @memory (
    k           BLOB    NOT NULL PRIMARY KEY,
    free        INTEGER,          -- since when a claim has room and is kept from it by a reserved place
    count       INTEGER NOT NULL, -- how many leases in a row were abandoned; of the last one:
    token       BLOB    NOT NULL,
    until       INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    once        INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL,
    owner       BLOB    NOT NULL,
    progress    BLOB              -- what was saved last
) STRICT, WITHOUT ROWID;

-- The places in a key's queue. A reserved one and those who wait there have one number.
CREATE TABLE @place (
    k        BLOB    NOT NULL,
    number   INTEGER NOT NULL,
    token    BLOB    NOT NULL,
    reserved INTEGER NOT NULL, -- 1: nobody waits here, but may come
    until    INTEGER NOT NULL,
    permits  INTEGER NOT NULL, -- this and the next two: of who waits
    weight   INTEGER NOT NULL,
    max_age  INTEGER NOT NULL,
    hold     INTEGER NOT NULL, -- reserved: for how long it may be in the way; 0: until it is over
    asked    INTEGER NOT NULL, -- when its token asked for it last
    owner    BLOB    NOT NULL,
    PRIMARY KEY (k, number, token)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX @place_token ON @place (k, token);

-- What finished holders left behind. The id is the record's end times 1024 plus
-- a number that makes it unique, so that pruning walks the table from its left
-- edge and needs no second index. The data is last: what stands before it is
-- read without it.
CREATE TABLE @record (
    id          INTEGER PRIMARY KEY,
    k           BLOB    NOT NULL UNIQUE,
    token       BLOB    NOT NULL,
    written     INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL,
    data        BLOB    NOT NULL
) STRICT;

-- Tokens that should ask again, for the processes that they wait in.
CREATE TABLE @wake (
    seq   INTEGER PRIMARY KEY,
    token BLOB NOT NULL
) STRICT;
