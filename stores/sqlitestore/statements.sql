-- The statements of the store, each after a line with its name. lock, note and deleteRan are
-- for transactions of the application. lock writes nothing, but takes the writer's lock, and
-- as the first statement it cannot have an old snapshot.

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

-- name: plain
SELECT r.id, r.written, r.fingerprint, r.data FROM (SELECT 1) LEFT JOIN @record r ON r.k = ?1
WHERE NOT EXISTS (SELECT 1 FROM @lease WHERE k = ?1) AND NOT EXISTS (SELECT 1 FROM @place WHERE k = ?1)

-- name: leases
SELECT token, abandoned, fence, attempt, since, ends, once, seq, inherits, permits, weight, fingerprint, owner
FROM @lease WHERE k = ?1

-- name: insertLease
INSERT INTO @lease (k, token, abandoned, fence, attempt, since, ends, once, seq, inherits, permits, weight, fingerprint, owner)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)

-- name: saveLease
REPLACE INTO @lease (k, token, abandoned, fence, attempt, since, ends, once, seq, inherits, permits, weight, fingerprint, owner)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)

-- name: deleteLease
DELETE FROM @lease WHERE k = ?1 AND token = ?2 AND abandoned = ?3

-- name: renewLease
UPDATE @lease SET ends = ?3 WHERE k = ?1 AND token = ?2 AND abandoned = 0 AND ends > ?4

-- name: renewProgress
REPLACE INTO @progress (k, fence, data)
SELECT k, fence, ?3 FROM @lease WHERE k = ?1 AND token = ?2 AND abandoned = 0

-- name: endPlain
DELETE FROM @lease WHERE k = ?1 AND token = ?2 AND abandoned = 0 AND ends > ?3 AND seq = 0
AND attempt = 1 AND permits = 1 AND NOT EXISTS (SELECT 1 FROM @place WHERE k = ?1)
AND NOT EXISTS (SELECT 1 FROM @progress WHERE k = ?1) RETURNING fingerprint

-- name: note
UPDATE @lease SET ends = 0 WHERE k = ?1 AND token = ?2 AND abandoned = 0 AND ends > ?3
RETURNING fingerprint

-- name: deleteRan
DELETE FROM @lease WHERE k = ?1 AND abandoned = 0 AND ends > 0 AND ends <= ?2

-- name: saved
SELECT fence FROM @progress WHERE k = ?1

-- name: progress
SELECT data FROM @progress WHERE k = ?1 AND fence = ?2

-- name: saveProgress
REPLACE INTO @progress (k, fence, data) VALUES (?1, ?2, ?3)

-- name: deleteProgress
DELETE FROM @progress WHERE k = ?1 AND fence = ?2

-- name: idle
SELECT since FROM @idle WHERE k = ?1

-- name: saveIdle
REPLACE INTO @idle (k, since) VALUES (?1, ?2)

-- name: deleteIdle
DELETE FROM @idle WHERE k = ?1

-- name: places
SELECT seq, token, kind, ends, owner, ttl, permits, weight, once, max_age, process, fingerprint, grace, asked
FROM @place WHERE k = ?1 ORDER BY seq LIMIT ?2

-- name: lastPlace
SELECT seq, token, kind, ends, owner, ttl, permits, weight, once, max_age, process, fingerprint, grace, asked
FROM @place WHERE k = ?1 ORDER BY seq DESC LIMIT 1

-- name: placeOf
SELECT seq, token, kind, ends, owner, ttl, permits, weight, once, max_age, process, fingerprint, grace, asked
FROM @place WHERE k = ?1 AND token = ?2

-- name: countNumbers
SELECT count(DISTINCT seq) FROM @place WHERE k = ?1 AND ends > ?2

-- name: savePlace
INSERT INTO @place (k, seq, token, kind, ends, owner, ttl, permits, weight, once, max_age, process, fingerprint, grace, asked)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
ON CONFLICT (k, token) DO UPDATE SET kind = excluded.kind, ends = excluded.ends, owner = excluded.owner,
ttl = excluded.ttl, permits = excluded.permits, weight = excluded.weight, once = excluded.once,
max_age = excluded.max_age, fingerprint = excluded.fingerprint, grace = excluded.grace, asked = excluded.asked

-- name: deletePlace
DELETE FROM @place WHERE k = ?1 AND seq = ?2 AND token = ?3

-- name: deleteNumber
DELETE FROM @place WHERE k = ?1 AND seq = ?2

-- name: deleteEndedPlaces
DELETE FROM @place WHERE k = ?1 AND token IN (SELECT token FROM @place WHERE k = ?1 AND ends <= ?2 LIMIT ?3)

-- name: record
SELECT id, token, written, fingerprint FROM @record WHERE k = ?1

-- name: data
SELECT data FROM @record WHERE k = ?1

-- name: size
SELECT length(data) FROM @record WHERE k = ?1

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
SELECT k FROM @lease WHERE k > ?1 AND k < ?2 UNION SELECT k FROM @place WHERE k > ?1 AND k < ?2 ORDER BY k LIMIT ?3

-- name: recordKeys
SELECT k FROM @record WHERE k > ?1 AND k < ?2 ORDER BY k LIMIT ?3

-- name: allKeys
SELECT k FROM @lease WHERE k > ?1 AND k < ?2 UNION SELECT k FROM @place WHERE k > ?1 AND k < ?2
UNION SELECT k FROM @record WHERE k > ?1 AND k < ?2 ORDER BY k LIMIT ?3
