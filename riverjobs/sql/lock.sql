-- Keeps others from changing the job's state until the transaction ends.
SELECT state::text FROM @job WHERE id = $1 FOR UPDATE
