-- Unfinished jobs with places, by state and key, in the order of their insertion.
CREATE INDEX CONCURRENTLY IF NOT EXISTS dibs_river_job ON @river_job (state, (metadata->'dibs'->>'key'), id)
WHERE finalized_at IS NULL AND metadata->'dibs' ? 'ticket'
