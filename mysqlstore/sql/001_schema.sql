-- The tables of a dibs store, version 1. @name stands for the name with the prefix
-- that the store has, such as `dibs_name`.
--
-- A k is the length of the namespace in one byte, the namespace, and the name, so
-- that no two keys share one; it is bytes, so that no collation makes two keys one.
-- All times are the server's, in microseconds since 1970. What is not there is 0 or
-- ''. What has ended is dead although it still stands here: whoever asks next puts
-- that down, or pruning does.

-- One row for each key that is in use, or was a moment ago. It is what the verbs
-- lock, and its fence is why it stays for a moment: fences of a key must rise, and
-- whoever makes a new row cannot know of the one that was there before.
CREATE TABLE IF NOT EXISTS @key (
    k                VARBINARY(577) NOT NULL PRIMARY KEY,
    fence            BIGINT NOT NULL,                -- the highest that was given for the key; 0: none yet
    permits          INT NOT NULL,                   -- what holders and places agreed on
    busy             TINYINT NOT NULL DEFAULT 0,     -- there is more to know than one plain lease and the record
    queued           TINYINT NOT NULL DEFAULT 0,     -- @waiter may have something
    saved            TINYINT NOT NULL DEFAULT 0,     -- @progress has something
    -- the lease, or the offer, of a key with one permit
    token            VARBINARY(16) NOT NULL DEFAULT '',
    attempt          BIGINT NOT NULL DEFAULT 0,      -- 1 + how many leases in a row were abandoned before
    since            BIGINT NOT NULL DEFAULT 0,
    ends             BIGINT NOT NULL DEFAULT 0,
    offered          TINYINT NOT NULL DEFAULT 0,     -- until it is confirmed; nothing is abandoned if it runs out
    once             TINYINT NOT NULL DEFAULT 0,     -- at most once: the outcome is unknown if it runs out
    inherits         TINYINT NOT NULL DEFAULT 0,     -- there is progress of those before it
    seq              BIGINT NOT NULL DEFAULT 0,      -- of the reserved place that it has taken
    fingerprint      VARBINARY(32) NOT NULL DEFAULT '',
    owner            VARBINARY(255) NOT NULL DEFAULT '',
    -- how many leases in a row were abandoned, and the last of them until it has a
    -- successor
    abandoned        BIGINT NOT NULL DEFAULT 0,
    lost_token       VARBINARY(16) NOT NULL DEFAULT '',
    lost_fence       BIGINT NOT NULL DEFAULT 0,
    lost_attempt     BIGINT NOT NULL DEFAULT 0,
    lost_since       BIGINT NOT NULL DEFAULT 0,
    lost_ends        BIGINT NOT NULL DEFAULT 0,
    lost_once        TINYINT NOT NULL DEFAULT 0,     -- the outcome is unknown, until somebody resolves it
    lost_inherits    TINYINT NOT NULL DEFAULT 0,
    lost_fingerprint VARBINARY(32) NOT NULL DEFAULT '',
    lost_owner       VARBINARY(255) NOT NULL DEFAULT '',
    -- what the last holder left behind; its data is in @record
    rec_token        VARBINARY(16) NOT NULL DEFAULT '',
    rec_written      BIGINT NOT NULL DEFAULT 0,
    rec_ends         BIGINT NOT NULL DEFAULT 0,      -- 0: there is none
    rec_fingerprint  VARBINARY(32) NOT NULL DEFAULT ''
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- The leases, and offers, of keys with more than one permit.
CREATE TABLE IF NOT EXISTS @holder (
    k           VARBINARY(577) NOT NULL,
    token       VARBINARY(16) NOT NULL,
    fence       BIGINT NOT NULL,
    attempt     BIGINT NOT NULL,
    since       BIGINT NOT NULL,
    ends        BIGINT NOT NULL,
    offered     TINYINT NOT NULL,
    once        TINYINT NOT NULL,
    inherits    TINYINT NOT NULL,
    seq         BIGINT NOT NULL,
    fingerprint VARBINARY(32) NOT NULL,
    owner       VARBINARY(255) NOT NULL,
    PRIMARY KEY (k, token)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- Who waits for a key, in the order of seq.
CREATE TABLE IF NOT EXISTS @waiter (
    k           VARBINARY(577) NOT NULL,
    seq         BIGINT NOT NULL,
    token       VARBINARY(16) NOT NULL,
    kind        TINYINT NOT NULL,  -- 0 waits
                                   -- 1 reserved: it is not granted in its absence
                                   -- 2 reserved, and told that its turn has come
                                   -- 3 taken by the lease with that seq: it is in nobody's way,
                                   --   and stands again if that does not end cleanly
                                   -- 4 taken, and somebody waits for the end of the lease
    ends        BIGINT NOT NULL,
    lasts       BIGINT NOT NULL,   -- from when it was last asked for
    once        TINYINT NOT NULL,
    max_age     BIGINT NOT NULL,   -- of a record that answers it; 0: none does
    tells       TINYINT NOT NULL,  -- whether its process takes a grant that is told
    hold        BIGINT NOT NULL,   -- reserved: for how long it may keep others from the key
                                   -- once its turn has come; 0: until it runs out
    pressed     TINYINT NOT NULL,  -- somebody was kept from the key by it: its end is set to that
    fingerprint VARBINARY(32) NOT NULL,
    owner       VARBINARY(255) NOT NULL,
    PRIMARY KEY (k, seq),
    KEY waiter_token (token)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- What leases saved, apart from them because it can be large. What is passed on by
-- those that were abandoned has an empty token.
CREATE TABLE IF NOT EXISTS @progress (
    k     VARBINARY(577) NOT NULL,
    token VARBINARY(16) NOT NULL,
    data  MEDIUMBLOB NOT NULL,
    PRIMARY KEY (k, token)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- The data of records, by when they end so that pruning finds them.
CREATE TABLE IF NOT EXISTS @record (
    k    VARBINARY(577) NOT NULL PRIMARY KEY,
    ends BIGINT NOT NULL,
    data LONGBLOB NOT NULL,
    KEY record_ends (ends)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

-- One row, which comes last: what there is to know of the store.
CREATE TABLE IF NOT EXISTS @meta (
    one     TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,     -- of these tables
    fence   BIGINT NOT NULL,  -- no row of @key that was deleted had a higher one
    swept   BIGINT NOT NULL   -- when somebody last began to go through all keys
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = binary;

INSERT IGNORE INTO @meta (one, version, fence, swept) VALUES (1, 1, 0, 0);
