-- The tables of a dibs store, version 1. @name stands for a name with the store's prefix, such as
-- `dibs_name`.
--
-- A k is the length of the namespace in one byte, the namespace, and the name, so that no two
-- keys share a k. It is bytes, so that no collation makes two keys one. All times are the
-- server's, in microseconds since 1970. What does not exist is 0 or ''. Rows that have expired
-- stay until the next call about the key, or pruning, deletes them.

-- One row for each key that is in use, or was a minute ago. Calls lock it. It stays for a while,
-- because its next claim is cheaper then.
CREATE TABLE IF NOT EXISTS @key (
    k               VARBINARY(577) NOT NULL PRIMARY KEY,
    fence           BIGINT NOT NULL,              -- the highest of the key; 0: none yet
    busy            TINYINT NOT NULL DEFAULT 0,   -- other tables than @record have rows of the key
    idle_since      BIGINT NOT NULL DEFAULT 0,    -- since when a reserved place has blocked the idle key
    -- the lease of a key with one permit; without a token these columns have no meaning
    token           VARBINARY(16) NOT NULL DEFAULT '',
    attempt         BIGINT NOT NULL DEFAULT 0,    -- 1 + the number of leases abandoned in a row before
    since           BIGINT NOT NULL DEFAULT 0,
    ends            BIGINT NOT NULL DEFAULT 0,    -- 0: a transaction of the application settled it
    once            TINYINT NOT NULL DEFAULT 0,   -- at most once: the outcome is unknown if it expires
    seq             BIGINT NOT NULL DEFAULT 0,    -- the number of the reserved place at which it was granted
    inherits        BIGINT NOT NULL DEFAULT 0,    -- the fence under which the progress was saved that it inherits
    fingerprint     VARBINARY(32) NOT NULL DEFAULT '',
    owner           VARBINARY(255) NOT NULL DEFAULT '',
    -- the record; its data is in @record
    rec_token       VARBINARY(16) NOT NULL DEFAULT '',
    rec_written     BIGINT NOT NULL DEFAULT 0,
    rec_ends        BIGINT NOT NULL DEFAULT 0,    -- 0: there is none
    rec_fingerprint VARBINARY(32) NOT NULL DEFAULT '',
    -- NULL of a key with nothing but a record: of most keys. A lock leaves it as it is, so that
    -- its index costs a lock nothing.
    listed          TINYINT GENERATED ALWAYS AS (IF(rec_ends = 0 OR LENGTH(token) > 0, 1, NULL)) STORED,
    KEY listed (listed)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- The leases of keys with more than one permit. Also the last abandoned lease of each key, until
-- a lease is released or completed.
CREATE TABLE IF NOT EXISTS @holder (
    k           VARBINARY(577) NOT NULL,
    token       VARBINARY(16) NOT NULL,
    abandoned   TINYINT NOT NULL,  -- then attempt is how many were, in a row
    fence       BIGINT NOT NULL,
    attempt     BIGINT NOT NULL,
    since       BIGINT NOT NULL,
    ends        BIGINT NOT NULL,
    once        TINYINT NOT NULL,
    seq         BIGINT NOT NULL,
    inherits    BIGINT NOT NULL,
    permits     INT NOT NULL,
    weight      INT NOT NULL,
    fingerprint VARBINARY(32) NOT NULL,
    owner       VARBINARY(255) NOT NULL,
    PRIMARY KEY (k, token, abandoned)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- The places of a key's queue, in the order of seq. A reserved place and the waiters that claim
-- from it have the same seq.
CREATE TABLE IF NOT EXISTS @waiter (
    k           VARBINARY(577) NOT NULL,
    seq         BIGINT NOT NULL,
    token       VARBINARY(16) NOT NULL,
    kind        TINYINT NOT NULL,  -- 0 waits, 1 reserved, 2 keeps the number of a waiter of a process that relays
    ends        BIGINT NOT NULL,
    owner       VARBINARY(255) NOT NULL,
    -- of a waiter: its claim
    ttl         BIGINT NOT NULL,
    permits     INT NOT NULL,
    weight      INT NOT NULL,
    once        TINYINT NOT NULL,
    max_age     BIGINT NOT NULL,   -- of a record that answers it; 0: no record does
    process     BIGINT NOT NULL,   -- 1: its process takes pushed grants; -1: and relays; 0: it is woken
    fingerprint VARBINARY(32) NOT NULL,
    -- of a reserved place
    grace       BIGINT NOT NULL,   -- how long it may block an idle key; 0: until it expires. Of a waiter: the new grace of its reserved place; 0: no new one
    asked       BIGINT NOT NULL,   -- when it was claimed last
    PRIMARY KEY (k, seq, token),
    KEY waiter_token (token)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- The progress that leases saved, in a table of its own because it can be large.
CREATE TABLE IF NOT EXISTS @progress (
    k     VARBINARY(577) NOT NULL,
    fence BIGINT NOT NULL,  -- of the lease that saved it
    data  MEDIUMBLOB NOT NULL,
    PRIMARY KEY (k, fence)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- The data of records.
CREATE TABLE IF NOT EXISTS @record (
    k    VARBINARY(577) NOT NULL PRIMARY KEY,
    data LONGBLOB NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- One row: the store. It is made last.
CREATE TABLE IF NOT EXISTS @meta (
    one     TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,     -- of these tables
    fence   BIGINT NOT NULL,  -- at least the fence of every row of @key that was deleted
    swept   BIGINT NOT NULL   -- when a process last began a sweep
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;
INSERT IGNORE INTO @meta (one, version, fence, swept) VALUES (1, 1, 0, 0);
