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
    fence   INTEGER NOT NULL, -- the highest fence ever given
    writer  INTEGER NOT NULL  -- a random number of the Store that wrote last
) STRICT;

-- Who holds a key or, until a successor has ended cleanly, abandoned it; or settled it
-- in a transaction of the application, until the next one of ours that reads the key,
-- which does what a settlement does.
CREATE TABLE @lease (
    k           BLOB    NOT NULL,
    token       BLOB    NOT NULL,
    state       INTEGER NOT NULL, -- 0 held, 1 offered, 2 abandoned, 3 unknown,
                                  -- 4 settled, at until, in a transaction of the application
    until       INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    permits     INTEGER NOT NULL,
    plain       INTEGER NOT NULL, -- 1: nothing else in the file belongs to it
    seq         INTEGER NOT NULL, -- of the place it has taken, or was offered at; 0: none
    once        INTEGER NOT NULL, -- 1: at most once
    fingerprint BLOB    NOT NULL, -- empty: none
    owner       BLOB    NOT NULL,
    outcome     INTEGER, -- settled: how, as a dibs.Outcome
    retention   INTEGER, -- settled: of the record, from until
    data        BLOB,    -- settled: the record
    PRIMARY KEY (k, token)
) STRICT, WITHOUT ROWID;

-- What leases saved, apart from them because it can be large.
CREATE TABLE @progress (
    id    INTEGER PRIMARY KEY,
    k     BLOB NOT NULL,
    token BLOB NOT NULL,
    data  BLOB NOT NULL,
    UNIQUE (k, token)
) STRICT;

-- Who waits for a key, in the order of seq. A place that a lease has taken is in
-- nobody's way, and stands again when that runs out or is given back.
CREATE TABLE @waiter (
    k           BLOB    NOT NULL,
    seq         INTEGER NOT NULL,
    token       BLOB    NOT NULL,
    until       INTEGER NOT NULL,
    lasts       INTEGER NOT NULL, -- for how long, from when it is asked for
    dormant     INTEGER NOT NULL, -- 0 no, 1 reserved, 2 reserved and woken,
                                  -- 3 taken, 4 taken and asked for
    hold        INTEGER NOT NULL, -- reserved: for how long it may be in the way
                                  -- when its turn has come; 0: until it runs out
    pressed     INTEGER NOT NULL DEFAULT 0, -- 1: it is in the way, and until is set to that
    permits     INTEGER NOT NULL,
    once        INTEGER NOT NULL,
    max_age     INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL,
    owner       BLOB    NOT NULL,
    PRIMARY KEY (k, seq)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX @waiter_token ON @waiter (k, token);

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
