-- Writes a task into the line of its key: the unfinished tasks of one queue that have
-- places. Every entry has two numbers from one sequence: one taken before the task's
-- place was, one taken after. A task whose second number is below another's first has the
-- earlier place; no other order of two tasks is certain.
--
-- KEYS: the line (first numbers), the same tasks (second numbers), the hash of the lines
-- that are swept, the sequence.
-- ARGV: what to do, the task's ID, the key's digest, "AHEAD PERMITS", how long in s a line
-- lasts in which nothing happens.
--   enter   before the place is taken. Returns 0 if the task has an entry.
--   parked  once it is known that the task is going to be parked.
--   again   when a worker parks the task. Returns 0 if it has no entry.
local line, after, lines, sequence = unpack(KEYS)
local what, id, digest, limits, lasts = unpack(ARGV)
if what == 'again' then
  if not redis.call('ZSCORE', line, id) then return 0 end
  redis.call('HSET', lines, digest, limits)
  return 1
end
-- The sequence is Redis's time in µs, and rises also when its clock does not.
local time = redis.call('TIME')
local number = math.max(time[1] * 1000000 + time[2], (tonumber(redis.call('GET', sequence)) or 0) + 1)
number = string.format('%.0f', number)
redis.call('SET', sequence, number)
local new = redis.call('ZADD', line, 'NX', number, id)
if what == 'parked' then
  redis.call('ZADD', after, number, id)
  redis.call('HSET', lines, digest, limits)
else
  redis.call('ZADD', after, 'NX', number, id)
end
redis.call('EXPIRE', line, lasts)
redis.call('EXPIRE', after, lasts)
return new
