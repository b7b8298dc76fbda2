-- Locks the job's state until the transaction ends.
SELECT state::text FROM @river_job WHERE id = $1 FOR UPDATE
