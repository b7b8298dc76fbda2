-- Makes a task pending that was put off, and no other: in one step, so that a task
-- that is done, archived or scheduled by somebody else is never brought back.
-- KEYS: the task, the set of retries, the list of what is pending.
-- ARGV: the task's ID, the mark of its putting off, the time in ns.
-- Returns 0 when Asynq has not noted the putting off yet, else 1.
local state, message = unpack(redis.call('HMGET', KEYS[1], 'state', 'msg'))
if not state or not message then return 1 end -- deleted
-- The text of the last error is part of the message, and the mark of that.
if not string.find(message, ARGV[2], 1, true) then
  if state == 'active' then return 0 end
  return 1
end
if state == 'retry' then
  if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return 1 end
elseif state == 'pending' then
  -- It came back by itself, and is at the end of a backlog perhaps.
  if redis.call('LREM', KEYS[3], 1, ARGV[1]) == 0 then return 1 end
else
  return 1
end
-- To the front, from where it had been taken: others of its key wait for it.
redis.call('RPUSH', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'pending', 'pending_since', ARGV[3])
return 1
