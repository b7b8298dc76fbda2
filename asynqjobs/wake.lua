-- Makes a task pending that was put off, and no other: in one step, so that a task
-- that is done, archived or scheduled by somebody else is never brought back.
-- KEYS: the task, the set of retries, the list of what is pending.
-- ARGV: the task's ID, the mark of its putting off, the time in ns.
-- Returns "early" when Asynq has not noted the putting off yet, "gone" when the task
-- will not run, else "done".
local state, message = unpack(redis.call('HMGET', KEYS[1], 'state', 'msg'))
if not message or state == 'archived' then return 'gone' end
-- The text of the last error is part of the message, and the mark of that.
if not string.find(message, ARGV[2], 1, true) then
  if state == 'active' then return 'early' end
  return 'done'
end
if state == 'retry' then
  if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return 'done' end
elseif state == 'pending' then
  -- It came back by itself, and is at the end of a backlog perhaps.
  if redis.call('LREM', KEYS[3], 1, ARGV[1]) == 0 then return 'done' end
else
  return 'done'
end
-- To the front, from where it had been taken: others of its key wait for it.
redis.call('RPUSH', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'pending', 'pending_since', ARGV[3])
return 'done'
