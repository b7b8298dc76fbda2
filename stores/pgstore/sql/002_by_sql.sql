-- Version 2: leases by SQL alone. The public functions have the names claim and renew, which the
-- functions on arrays had. The files of functions follow.
DROP FUNCTION IF EXISTS @claim(bytea[], bigint[], bytea[], bigint[], bigint[], bigint[], boolean[], bytea[], bytea[], bigint, bigint);
DROP FUNCTION IF EXISTS @renew(bytea[], bytea[], bigint[], bytea[]);
DROP FUNCTION IF EXISTS @settle(bytea[], bytea[], bigint[], bigint[], bytea[], bigint);
UPDATE @meta SET version = 2;
