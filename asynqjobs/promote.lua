-- Keeps the rule of a line: its first AHEAD tasks are runnable. It makes pending those of
-- them that are parked, and changes no other task: it may be run at any time.
--
-- KEYS: the line, its second numbers and the hash of the lines that are swept, as in
-- enter.lua; then Asynq's sets of what is scheduled and what is retried, and its list of
-- what is pending.
-- ARGV: a task that is over or "", the key's digest, AHEAD, PERMITS, how Asynq's names of
-- tasks begin, the mark of parked tasks, how long in s a line lasts.
-- Returns how many tasks are pending now that were not.
local line, after, lines, scheduled, retry, pending = unpack(KEYS)
local over, digest, ahead, permits, task, mark, lasts = unpack(ARGV)
ahead, permits = tonumber(ahead), tonumber(permits)
local function leaves(id)
  redis.call('ZREM', line, id)
  redis.call('ZREM', after, id)
end
if over ~= '' then leaves(over) end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local promoted = {}
local at, missing = 0, 0
while true do
  local id, before = unpack(redis.call('ZRANGE', line, at, at, 'WITHSCORES'))
  if not id then break end
  -- So many tasks come before this one for certain.
  local rank = redis.call('ZCOUNT', after, '-inf', before) - missing
  if rank >= ahead then break end
  local name = task .. id
  local state = redis.call('HGET', name, 'state')
  if state == 'completed' or state == 'archived' or not state and now - redis.call('ZSCORE', after, id) > 60000000 then
    leaves(id)
  else
    at = at + 1
    if not state then
      missing = missing + 1 -- it is about to be enqueued, or was deleted: it is in nobody's way
    elseif state == 'scheduled' then
      -- The mark is one of the task's headers.
      if string.find(redis.call('HGET', name, 'msg'), mark, 1, true) and redis.call('ZREM', scheduled, id) == 1 then
        promoted[#promoted + 1] = id
      end
    elseif state == 'retry' and rank < permits then
      -- A worker had it and had no room for it: it comes back when it need not wait. The
      -- mark is in the text of its last error, which a failure does not have.
      if string.find(redis.call('HGET', name, 'msg'), mark .. ' ' .. id, 1, true) and redis.call('ZREM', retry, id) == 1 then
        promoted[#promoted + 1] = id
      end
    end
  end
end
if redis.call('EXISTS', line) == 0 then
  redis.call('HDEL', lines, digest)
else
  redis.call('EXPIRE', line, lasts)
  redis.call('EXPIRE', after, lasts)
end
-- To the front, so that a key does not wait behind the backlog of all others; the first of
-- them foremost.
for i = #promoted, 1, -1 do
  redis.call('RPUSH', pending, promoted[i])
  redis.call('HSET', task .. promoted[i], 'state', 'pending', 'pending_since', string.format('%d%06d000', time[1], time[2]))
end
return #promoted
