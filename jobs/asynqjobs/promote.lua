-- Makes the parked tasks among the first AHEAD of a line pending. It changes no other task,
-- so it may run at any time.
--
-- KEYS: the line, its second numbers, its marks and the hash of lines, as in enter.lua; then
-- Asynq's sets of scheduled tasks and of retries, and its list of pending tasks.
-- ARGV: a finished task or "", the key's digest, AHEAD, PERMITS, the prefix of Asynq's names
-- of tasks, the expiry of an unused line in s.
-- Returns how many tasks it made pending.
local line, after, marks, lines, scheduled, retry, pending = unpack(KEYS)
local over, digest, ahead, permits, task, lasts = unpack(ARGV)
ahead, permits = tonumber(ahead), tonumber(permits)
local function leaves(id)
  redis.call('ZREM', line, id)
  redis.call('ZREM', after, id)
  redis.call('HDEL', marks, id)
end
-- parked reports whether the message is that of the parking, and not of a later failure or of
-- another task with this ID.
local function parked(id)
  local mark = redis.call('HGET', marks, id)
  return mark and string.find(redis.call('HGET', task .. id, 'msg'), mark, 1, true)
end
if over ~= '' then leaves(over) end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local promoted = {}
local at, missing = 0, 0
while true do
  local id, before = unpack(redis.call('ZRANGE', line, at, at, 'WITHSCORES'))
  if not id then break end
  -- This many tasks certainly come before this one.
  local rank = redis.call('ZCOUNT', after, '-inf', before) - missing
  if rank >= ahead then break end
  local name = task .. id
  local state = redis.call('HGET', name, 'state')
  if state == 'completed' or state == 'archived' or not state and now - redis.call('ZSCORE', after, id) > 60000000 then
    leaves(id)
  else
    at = at + 1
    if not state then
      missing = missing + 1 -- not enqueued yet, or deleted: it does not count
    elseif state == 'scheduled' then
      if parked(id) and redis.call('ZREM', scheduled, id) == 1 then promoted[#promoted + 1] = id end
    elseif state == 'retry' and rank < permits then
      -- A worker has parked it, so it becomes pending when it need not wait.
      if parked(id) and redis.call('ZREM', retry, id) == 1 then promoted[#promoted + 1] = id end
    end
  end
end
if redis.call('EXISTS', line) == 0 then
  redis.call('HDEL', lines, digest)
else
  redis.call('EXPIRE', line, lasts)
  redis.call('EXPIRE', after, lasts)
  redis.call('EXPIRE', marks, lasts)
end
-- To the front of the queue, so that the key does not wait behind the backlog of other keys.
for i = #promoted, 1, -1 do
  redis.call('RPUSH', pending, promoted[i])
  redis.call('HDEL', marks, promoted[i])
  redis.call('HSET', task .. promoted[i], 'state', 'pending', 'pending_since', string.format('%d%06d000', time[1], time[2]))
end
return #promoted
