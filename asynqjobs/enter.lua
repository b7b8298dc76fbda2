-- Writes a task that has a place into the line of its key: the unfinished tasks of one queue
-- that have places. An entry has two numbers of one sequence: the last one that was given
-- when the task's place had not been taken, and one that is given now. A task whose second
-- number is not above another's first has the earlier place. No other order is certain.
--
-- KEYS: the line (first numbers), the same tasks (second numbers), the hash of the lines
-- that are swept, the sequence.
-- ARGV: the task's ID, the key's digest, its first number or "", AHEAD, PERMITS, how long in
-- s a line lasts in which nothing happens.
-- Returns "first" if the task is among the first AHEAD, "parked" if not, and "there" if it
-- had an entry. Without a first number it writes no entry, and returns "there" or "none".
local line, after, lines, sequence = unpack(KEYS)
local id, digest, before, ahead, permits, lasts = unpack(ARGV)
local limits = ahead .. ' ' .. permits
if redis.call('ZSCORE', line, id) then
  if before == '' then redis.call('HSET', lines, digest, limits) end
  return 'there'
end
if before == '' then return 'none' end
-- The sequence is Redis's time in µs, and rises also when its clock does not.
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
