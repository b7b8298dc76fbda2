-- The statements of the writing connection, each after a line with its name.

-- name: begin
BEGIN IMMEDIATE

-- name: read
BEGIN

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: meta
SELECT boot, offset, clock, fence, writer FROM @meta WHERE one = 1

-- name: setMeta
UPDATE @meta SET clock = ?1, fence = ?2, writer = ?3 WHERE one = 1

-- name: inUse
SELECT 1 FROM @lease WHERE k = ?1 UNION ALL SELECT 1 FROM @waiter WHERE k = ?1

-- name: inUseOrDone
SELECT 1 FROM @lease WHERE k = ?1 UNION ALL SELECT 1 FROM @waiter WHERE k = ?1
UNION ALL SELECT 2 FROM @record WHERE k = ?1

-- name: leases
SELECT token, state, until, fence, since, attempt, permits, plain, once, fingerprint, owner, seq
FROM @lease WHERE k = ?1

-- name: insertLease
INSERT INTO @lease (k, token, state, until, fence, since, attempt, permits, plain, once, fingerprint, owner, seq)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)

-- name: confirmLease
UPDATE @lease SET state = 0, seq = 0, until = ?3, plain = ?4, once = ?5, fingerprint = ?6, owner = ?7
WHERE k = ?1 AND token = ?2

-- name: extendLease
UPDATE @lease SET until = ?3 WHERE k = ?1 AND token = ?2

-- name: renewLease
UPDATE @lease SET until = ?3 WHERE k = ?1 AND token = ?2 AND state = 0 AND until > ?4

-- name: abandonLease
UPDATE @lease SET state = ?3, until = ?4, attempt = ?5 WHERE k = ?1 AND token = ?2

-- name: roughenLease
UPDATE @lease SET plain = 0 WHERE k = ?1 AND token = ?2

-- name: deleteLease
DELETE FROM @lease WHERE k = ?1 AND token = ?2

-- name: renameLease
UPDATE @lease SET token = ?3 WHERE k = ?1 AND token = ?2

-- name: endPlain
DELETE FROM @lease WHERE k = ?1 AND token = ?2 AND until > ?3 AND state = 0 AND plain = 1
AND NOT EXISTS (SELECT 1 FROM @waiter WHERE k = ?1)
RETURNING fingerprint

-- name: progress
SELECT data FROM @progress WHERE k = ?1 AND token = ?2

-- name: saveProgress
INSERT INTO @progress (k, token, data) VALUES (?1, ?2, ?3)
ON CONFLICT (k, token) DO UPDATE SET data = excluded.data

-- name: renameProgress
UPDATE OR IGNORE @progress SET token = ?3 WHERE k = ?1 AND token = ?2

-- name: deleteProgress
DELETE FROM @progress WHERE k = ?1 AND token = ?2

-- name: frontWaiter
SELECT seq, token, until, dormant, permits, once, max_age, fingerprint, owner, hold, pressed
FROM @waiter WHERE k = ?1 AND dormant < 3 ORDER BY seq LIMIT 1

-- name: lastWaiter
SELECT seq FROM @waiter WHERE k = ?1 ORDER BY seq DESC LIMIT 1

-- name: frontLiveWaiter
SELECT seq, token, until, dormant, permits, once, max_age, fingerprint, owner, hold, pressed
FROM @waiter WHERE k = ?1 AND dormant < 3 AND until > ?2 ORDER BY seq LIMIT 1

-- name: firstEnd
SELECT min(until) FROM (SELECT until FROM @waiter WHERE k = ?1 AND seq < ?2 AND dormant < 3 ORDER BY seq LIMIT 16)

-- name: countWaiters
SELECT count(*) FROM @waiter WHERE k = ?1 AND dormant < 3

-- name: findWaiter
SELECT seq, until, dormant FROM @waiter WHERE k = ?1 AND token = ?2

-- name: insertWaiter
INSERT INTO @waiter (k, seq, token, until, dormant, permits, once, max_age, fingerprint, owner, lasts, hold)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)

-- name: keepWaiter
UPDATE @waiter SET until = ?3, dormant = ?4, once = ?5, max_age = ?6, fingerprint = ?7, owner = ?8, lasts = ?9,
hold = ?10, pressed = 0 WHERE k = ?1 AND seq = ?2

-- name: prolongWaiter
UPDATE @waiter SET until = ?3, lasts = ?4, pressed = 0 WHERE k = ?1 AND seq = ?2

-- name: press
UPDATE @waiter SET until = ?3, pressed = 1 WHERE k = ?1 AND seq = ?2

-- name: setDormant
UPDATE @waiter SET dormant = ?3, until = ?4 WHERE k = ?1 AND seq = ?2

-- name: takePlace
UPDATE @waiter SET dormant = 3, until = ?3, pressed = 0, hold = CASE WHEN ?4 > 0 THEN ?4 ELSE hold END
WHERE k = ?1 AND seq = ?2

-- name: setLasts
UPDATE @waiter SET lasts = ?3, hold = CASE WHEN ?4 >= 0 THEN ?4 ELSE hold END WHERE k = ?1 AND seq = ?2

-- name: standAgain
UPDATE @waiter SET dormant = 1, until = ?3 + lasts WHERE k = ?1 AND seq = ?2 AND dormant >= 3

-- name: giveUpPlace
DELETE FROM @waiter WHERE k = ?1 AND seq = ?2 RETURNING token, dormant

-- name: deleteWaiter
DELETE FROM @waiter WHERE k = ?1 AND seq = ?2

-- name: deleteAnswered
DELETE FROM @waiter WHERE k = ?1 AND max_age > 0 AND dormant < 3 RETURNING token

-- name: deleteDead
DELETE FROM @waiter WHERE k = ?1 AND until <= ?2

-- name: record
SELECT id, token, written, fingerprint, data FROM @record WHERE k = ?1

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

-- name: endedRecords
SELECT id, length(data) FROM @record WHERE id <= ?1 ORDER BY id LIMIT ?2

-- name: deleteRecordByID
DELETE FROM @record WHERE id = ?1

-- name: scanLeases
SELECT k, token, state, until, once FROM @lease WHERE (k, token) > (?1, ?2) ORDER BY k, token

-- name: scanWaiters
SELECT k, seq, until FROM @waiter WHERE (k, seq) > (?1, ?2) ORDER BY k, seq

-- name: settledLease
SELECT outcome, retention, data FROM @lease WHERE k = ?1 AND token = ?2
