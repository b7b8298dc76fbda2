-- Enters a task with a place into the line of its key: the unfinished tasks of one queue that
-- have places. An entry has two numbers of one sequence: the last number before the task's
-- place was reserved, and a new one from now. If a task's second number is not above another
-- task's first number, it has the earlier place. Otherwise their order is unknown.
--
-- A parked task has a mark, a random text: here in the hash of marks, and in Asynq's message of
-- the task. So a message has the mark only if this parking wrote it, whatever else is in it.
--
-- KEYS: the line (first numbers), the same tasks (second numbers), the marks of its parked
-- tasks, the hash of lines with parked tasks, the sequence.
-- ARGV: the task's ID, the key's digest, its first number or "", AHEAD, PERMITS, the expiry
-- of an unused line in s, the mark if the task is parked.
-- Returns "first" if the task is among the first AHEAD, "parked" if not, and "there" if it
-- already has an entry. Without a first number, a worker parks the task: it writes no entry
-- and returns "there" or "none".
local line, after, marks, lines, sequence = unpack(KEYS)
local id, digest, before, ahead, permits, lasts, mark = unpack(ARGV)
local function parks()
  redis.call('HSET', lines, digest, ahead .. ' ' .. permits)
  redis.call('HSET', marks, id, mark)
  redis.call('EXPIRE', marks, lasts)
end
if redis.call('ZSCORE', line, id) then
  if before == '' then parks() end
  return 'there'
end
if before == '' then return 'none' end
-- The sequence is Redis's time in µs, and rises even if the clock does not.
local time = redis.call('TIME')
local number = math.max(time[1] * 1000000 + time[2], (tonumber(redis.call('GET', sequence)) or 0) + 1)
number = string.format('%.0f', number)
redis.call('SET', sequence, number)
redis.call('ZADD', line, before, id)
redis.call('ZADD', after, number, id)
redis.call('EXPIRE', line, lasts)
redis.call('EXPIRE', after, lasts)
if redis.call('ZCOUNT', after, '-inf', before) < tonumber(ahead) then return 'first' end
parks()
return 'parked'
