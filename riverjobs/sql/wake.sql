-- Makes a job available that was snoozed by the delivery that is told by the time at
-- which it was fetched, its attempt and its number of snoozes, and tells the clients
-- of its queue as an insertion does. It goes back to where it was in the queue. Returns
-- how it found the job: 'woken', 'running' when the snooze is not noted yet, 'over' when
-- the job is finalized or gone, and 'back' when it was made available, fetched or put
-- off otherwise since.
WITH woken AS (
    UPDATE @job SET state = 'available', scheduled_at = $5
    WHERE id = $1 AND (state = 'scheduled' OR state = 'available' AND scheduled_at > now())
        AND attempted_at = $2 AND attempt = $3 AND metadata->>'snoozes' = $4
    RETURNING queue
), told AS (
    SELECT pg_notify(concat(coalesce(nullif($6::text, ''), current_schema()), '.river_insert'),
        json_build_object('queue', queue)::text)
    FROM woken
)
SELECT CASE
    WHEN (SELECT count(*) FROM told) > 0 THEN 'woken'
    WHEN EXISTS (SELECT FROM @job WHERE id = $1 AND state = 'running' AND attempted_at = $2) THEN 'running'
    WHEN EXISTS (SELECT FROM @job WHERE id = $1 AND finalized_at IS NULL) THEN 'back'
    ELSE 'over'
END
