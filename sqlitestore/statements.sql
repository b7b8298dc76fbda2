-- The statements of the store, each after a line with its name. lock, endLease, deleteRan
-- and wakeNumber are for transactions of the application. lock writes nothing, but takes
-- the writer's lock, and as the first statement it cannot have an old snapshot.

-- name: begin
BEGIN IMMEDIATE

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: lock
UPDATE @meta SET fence = fence WHERE one = 0

-- name: meta
SELECT boot, offset, clock, fence FROM @meta WHERE one = 1

-- name: setMeta
UPDATE @meta SET clock = ?1, fence = ?2 WHERE one = 1

-- name: inUse
SELECT 1 FROM @lease WHERE k = ?1 UNION ALL SELECT 1 FROM @place WHERE k = ?1
UNION ALL SELECT 1 FROM @memory WHERE k = ?1 UNION ALL SELECT 1 FROM @record WHERE ?2 AND k = ?1

-- name: leases
SELECT token, until, fence, since, attempt, permits, weight, number, once, fingerprint, owner
FROM @lease WHERE k = ?1

-- name: insertLease
INSERT INTO @lease (k, token, until, fence, since, attempt, permits, weight, number, once, fingerprint, owner)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)

-- name: inheritProgress
UPDATE @lease SET inherited = (SELECT progress FROM @memory WHERE k = ?1) WHERE k = ?1 AND token = ?2

-- name: inherited
SELECT inherited FROM @lease WHERE k = ?1 AND token = ?2

-- name: renewLease
UPDATE @lease SET until = ?3 WHERE k = ?1 AND token = ?2 AND until > ?4

-- name: saveProgress
UPDATE @lease SET progress = ?3 WHERE k = ?1 AND token = ?2

-- name: deleteLease
DELETE FROM @lease WHERE k = ?1 AND token = ?2

-- name: endPlain
DELETE FROM @lease WHERE k = ?1 AND token = ?2 AND until > ?3 AND number = 0 AND permits = 1
AND NOT EXISTS (SELECT 1 FROM @place WHERE k = ?1) AND NOT EXISTS (SELECT 1 FROM @memory WHERE k = ?1)
RETURNING fingerprint

-- name: endLease
DELETE FROM @lease WHERE k = ?1 AND token = ?2 AND until > ?3
RETURNING fingerprint, number, EXISTS (SELECT 1 FROM @place WHERE k = ?1), EXISTS (SELECT 1 FROM @memory WHERE k = ?1)

-- name: deleteRan
DELETE FROM @lease WHERE k = ?1 AND until <= ?2

-- name: memory
SELECT free, count, token, until, fence, since, once, fingerprint, owner FROM @memory WHERE k = ?1

-- name: abandon
INSERT INTO @memory (k, count, token, until, fence, since, once, fingerprint, owner, progress)
SELECT k, 1, token, ?3, fence, since, once, fingerprint, owner, progress FROM @lease WHERE k = ?1 AND token = ?2
ON CONFLICT (k) DO UPDATE SET count = count + 1, token = excluded.token, until = excluded.until,
fence = excluded.fence, since = excluded.since, once = excluded.once, fingerprint = excluded.fingerprint,
owner = excluded.owner, progress = coalesce(excluded.progress, progress)

-- name: forget
UPDATE @memory SET count = 0, once = 0, progress = NULL WHERE k = ?1

-- name: setFree
INSERT INTO @memory (k, free, count, token, until, fence, since, once, fingerprint, owner)
VALUES (?1, ?2, 0, x'', 0, 0, 0, 0, x'', x'') ON CONFLICT (k) DO UPDATE SET free = excluded.free

-- name: clearFree
UPDATE @memory SET free = NULL WHERE k = ?1

-- name: deleteMemory
DELETE FROM @memory WHERE k = ?1 AND count = 0 AND free IS NULL

-- name: places
SELECT number, token, reserved, until, permits, weight, hold, asked FROM @place WHERE k = ?1 ORDER BY number

-- name: findPlace
SELECT number, reserved, until FROM @place WHERE k = ?1 AND token = ?2

-- name: lastPlace
SELECT max(number) FROM @place WHERE k = ?1

-- name: countPlaces
SELECT count(*) FROM @place WHERE k = ?1 AND until > ?2

-- name: savePlace
INSERT INTO @place (k, number, token, reserved, until, permits, weight, max_age, hold, asked, owner)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (k, token) DO UPDATE SET reserved = excluded.reserved, until = excluded.until,
permits = excluded.permits, weight = excluded.weight, max_age = excluded.max_age, hold = excluded.hold,
asked = excluded.asked, owner = excluded.owner

-- name: setHold
UPDATE @place SET hold = ?3 WHERE k = ?1 AND number = ?2 AND reserved = 1

-- name: deletePlace
DELETE FROM @place WHERE k = ?1 AND number = ?2 AND token = ?3

-- name: deleteNumber
DELETE FROM @place WHERE k = ?1 AND number = ?2 RETURNING token, reserved

-- name: wakeNumber
INSERT INTO @wake (token) SELECT token FROM @place WHERE k = ?1 AND number = ?2 AND reserved = 0

-- name: hasNumber
SELECT 1 FROM @place WHERE k = ?1 AND number = ?2 AND until > ?3

-- name: deleteEndedPlaces
DELETE FROM @place WHERE k = ?1 AND token IN (SELECT token FROM @place WHERE k = ?1 AND until <= ?2 LIMIT ?3)

-- name: waiters
SELECT token FROM @place WHERE k = ?1 AND reserved = 0 AND until > ?2 AND max_age >= ?3

-- name: describePlaces
SELECT token, owner, until, reserved, number, hold, asked FROM @place WHERE k = ?1 AND until > ?2 ORDER BY number, reserved

-- name: record
SELECT id, token, written, fingerprint, data FROM @record WHERE k = ?1

-- name: recordInfo
SELECT id, token, written, length(data) FROM @record WHERE k = ?1

-- name: saveRecord
INSERT INTO @record (id, k, token, written, fingerprint, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (k) DO UPDATE SET id = excluded.id, token = excluded.token, written = excluded.written,
fingerprint = excluded.fingerprint, data = excluded.data

-- name: deleteRecord
DELETE FROM @record WHERE k = ?1

-- name: wake
INSERT INTO @wake (token) VALUES (?1)

-- name: lastWake
SELECT max(seq) FROM @wake

-- name: forgetWakes
DELETE FROM @wake WHERE seq <= ?1 AND seq < (SELECT max(seq) FROM @wake)

-- name: deleteEnded
DELETE FROM @record WHERE id IN (SELECT id FROM @record WHERE id <= ?1 ORDER BY id LIMIT ?2)

-- name: keys
SELECT k FROM @lease WHERE k > ?1 AND k < ?2 UNION SELECT k FROM @place WHERE k > ?1 AND k < ?2
UNION SELECT k FROM @memory WHERE k > ?1 AND k < ?2 ORDER BY k LIMIT ?3

-- name: recordKeys
SELECT k FROM @record WHERE k > ?1 AND k < ?2 ORDER BY k LIMIT ?3

-- name: allKeys
SELECT k FROM @lease WHERE k > ?1 AND k < ?2 UNION SELECT k FROM @place WHERE k > ?1 AND k < ?2
UNION SELECT k FROM @memory WHERE k > ?1 AND k < ?2 UNION SELECT k FROM @record WHERE k > ?1 AND k < ?2
ORDER BY k LIMIT ?3
