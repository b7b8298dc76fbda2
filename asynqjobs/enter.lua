-- Enters a task with a place into the line of its key: the unfinished tasks of one queue that
-- have places. An entry has two numbers of one sequence: the last number before the task's
-- place was reserved, and a new one from now. If a task's second number is not above another
-- task's first number, it has the earlier place. Otherwise their order is unknown.
--
-- KEYS: the line (first numbers), the same tasks (second numbers), the hash of lines with
-- parked tasks, the sequence.
-- ARGV: the task's ID, the key's digest, its first number or "", AHEAD, PERMITS, the expiry
-- of an unused line in s.
-- Returns "first" if the task is among the first AHEAD, "parked" if not, and "there" if it
-- already has an entry. Without a first number it writes no entry and returns "there" or
-- "none".
local line, after, lines, sequence = unpack(KEYS)
local id, digest, before, ahead, permits, lasts = unpack(ARGV)
local limits = ahead .. ' ' .. permits
if redis.call('ZSCORE', line, id) then
  if before == '' then redis.call('HSET', lines, digest, limits) end
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
redis.call('HSET', lines, digest, limits)
return 'parked'
