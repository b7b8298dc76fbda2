-- The tables of a dibs store, version 2: for how long a reserved place may be in the
-- way. @name stands for the name with the prefix that the store has.
--
--   hold     BIGINT   for how long a reserved place may keep others from the key once
--                     its turn has come; 0: until it runs out
--   pressed  TINYINT  somebody was kept from the key by it, and its end is set to that
--
-- Programs that know version 1 can go on meanwhile: what they leave out is 0.

-- MySQL has no ADD COLUMN IF NOT EXISTS, and this can be run again.
SET @S=IF((SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema=DATABASE() AND CONCAT('`',table_name,'`')='@waiter' AND column_name='hold')=0,
  'ALTER TABLE @waiter ADD COLUMN hold BIGINT NOT NULL DEFAULT 0, ADD COLUMN pressed TINYINT NOT NULL DEFAULT 0',
  'DO 0');
PREPARE dibs_hold FROM @S;
EXECUTE dibs_hold;
DEALLOCATE PREPARE dibs_hold;

UPDATE @meta SET version=2 WHERE version<2;
