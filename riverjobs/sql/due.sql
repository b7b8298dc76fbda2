-- Notes when a try was due, which waits for its turn and is about to be snoozed.
UPDATE @job SET metadata = jsonb_set(metadata, '{dibs}', coalesce(metadata->'dibs', '{}') || $3::jsonb)
WHERE id = $1 AND state = 'running' AND attempted_at = $2
