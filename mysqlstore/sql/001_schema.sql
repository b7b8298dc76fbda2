-- The tables of a dibs store, version 1. @name stands for the name with the prefix
-- that the store has, such as `dibs_name`.
--
-- A k is the length of the namespace in one byte, the namespace, and the name, so
-- that no two keys share one; it is bytes, so that no collation makes two keys one.
-- All times are the server's, in microseconds since 1970. What is not there is 0 or
-- ''. What has ended is dead although it still stands: whoever asks next puts that down.

-- One row for each key that is in use, or was a moment ago. It is what the verbs lock, and
-- fences of a key must rise: whoever makes a new row cannot know of the one before.
CREATE TABLE IF NOT EXISTS @key (
    k               VARBINARY(577) NOT NULL PRIMARY KEY,
    fence           BIGINT NOT NULL,              -- the highest that was given for the key; 0: none yet
    busy            TINYINT NOT NULL DEFAULT 0,   -- there is more to know than this row and the record
    idle_since      BIGINT NOT NULL DEFAULT 0,    -- since when a reserved place keeps others from room that there is
    -- the lease of a key with one permit; what is here without a token has no meaning
    token           VARBINARY(16) NOT NULL DEFAULT '',
    attempt         BIGINT NOT NULL DEFAULT 0,    -- 1 + how many leases in a row were abandoned before
    since           BIGINT NOT NULL DEFAULT 0,
    ends            BIGINT NOT NULL DEFAULT 0,    -- 0: it was settled in a transaction of the application's
    once            TINYINT NOT NULL DEFAULT 0,   -- at most once: the outcome is unknown if it runs out
    seq             BIGINT NOT NULL DEFAULT 0,    -- of the reserved place at which it was granted
    inherits            BIGINT NOT NULL DEFAULT 0,    -- of what was saved under that fence
    fingerprint     VARBINARY(32) NOT NULL DEFAULT '',
    owner           VARBINARY(255) NOT NULL DEFAULT '',
    -- what the last holder left behind; its data is in @record
    rec_token       VARBINARY(16) NOT NULL DEFAULT '',
    rec_written     BIGINT NOT NULL DEFAULT 0,
    rec_ends        BIGINT NOT NULL DEFAULT 0,    -- 0: there is none
    rec_fingerprint VARBINARY(32) NOT NULL DEFAULT ''
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- The leases of keys with more than one permit, and of each key the last lease that was
-- abandoned, until one ends cleanly.
CREATE TABLE IF NOT EXISTS @holder (
    k           VARBINARY(577) NOT NULL,
    token       VARBINARY(16) NOT NULL,
    abandoned   TINYINT NOT NULL,  -- its attempt is how many were, in a row
    fence       BIGINT NOT NULL,
    attempt     BIGINT NOT NULL,
    since       BIGINT NOT NULL,
    ends        BIGINT NOT NULL,
    once        TINYINT NOT NULL,
    seq         BIGINT NOT NULL,
    inherits        BIGINT NOT NULL,
    permits     INT NOT NULL,
    weight      INT NOT NULL,
    fingerprint VARBINARY(32) NOT NULL,
    owner       VARBINARY(255) NOT NULL,
    PRIMARY KEY (k, token, abandoned)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- The places in a key's queue, in the order of seq. A reserved place and those who wait
-- at it share one.
CREATE TABLE IF NOT EXISTS @waiter (
    k           VARBINARY(577) NOT NULL,
    seq         BIGINT NOT NULL,
    token       VARBINARY(16) NOT NULL,
    kind        TINYINT NOT NULL,  -- 0 waits, 1 reserved
    ends        BIGINT NOT NULL,
    owner       VARBINARY(255) NOT NULL,
    -- of who waits: its claim
    ttl         BIGINT NOT NULL,
    permits     INT NOT NULL,
    weight      INT NOT NULL,
    once        TINYINT NOT NULL,
    max_age     BIGINT NOT NULL,   -- of a record that answers it; 0: none does
    process     BIGINT NOT NULL,   -- 1 if its process takes a grant that is told
    fingerprint VARBINARY(32) NOT NULL,
    -- of a reserved place
    hold        BIGINT NOT NULL,   -- how long it may keep others from room that there is; 0: until it ends. Of who waits at it: what that is to be when it is granted; 0: what it was
    asked       BIGINT NOT NULL,   -- when it was asked for last
    PRIMARY KEY (k, seq, token),
    KEY waiter_token (token)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- What leases saved, apart from them because it can be large.
CREATE TABLE IF NOT EXISTS @progress (
    k     VARBINARY(577) NOT NULL,
    fence BIGINT NOT NULL,  -- of the lease
    data  MEDIUMBLOB NOT NULL,
    PRIMARY KEY (k, fence)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- The data of records.
CREATE TABLE IF NOT EXISTS @record (
    k    VARBINARY(577) NOT NULL PRIMARY KEY,
    data LONGBLOB NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- One row, which comes last: what there is to know of the store.
CREATE TABLE IF NOT EXISTS @meta (
    one     TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,     -- of these tables
    fence   BIGINT NOT NULL,  -- no row of @key that was deleted had a higher one
    swept   BIGINT NOT NULL   -- when somebody last began to go through all keys
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;
INSERT IGNORE INTO @meta (one, version, fence, swept) VALUES (1, 1, 0, 0);
