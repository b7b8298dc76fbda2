-- settle ends leases and gives up places.
--
-- KEYS  the fence, then the state of each key
-- ARGV  sharded; then for each settlement four: token, outcome (dibs.Outcome),
--       data, retention in µs
--
-- Each is answered by 1 when it is done, 2 when the token neither holds the key
-- nor waits for it, and {0, why} when it failed.

local sharded = ARGV[1] == '1'
local FIRST, EACH = 1, 4
local RELEASE, KEEP, ABANDON, UNDO = 0, 1, 2, 3
local OK, NOT = 1, 2

-- The short way of a lease that nothing hangs on.
local answers, rest = {}, 0
for i = 1, #KEYS - 1 do
  local a = FIRST + EACH * (i - 1)
  local name, outcome = KEYS[i + 1], ARGV[a + 2] + 0
  local v = outcome <= KEEP and redis.pcall('GET', name)
  local st = type(v) == 'string' and unpack(v)
  local h = st and #st[HOLDERS] == 1 and st[HOLDERS][1]
  if h and h[TOKEN] == ARGV[a + 1] and h[ENDS] > now and h[OFFERED] == 0 and not h[PLACE] and st[1] == VERSION
    and st[QUEUE] == 0 and st[PROGRESS] == 0 then
    local done = {}
    if outcome == KEEP then
      local print, retention = h[PRINT], ARGV[a + 4] + 0
      if print == '' then print = string.rep('\0', 32) end
      done = redis.pcall('SET', sub(name, 1, -2) .. 'r',
        struct.pack('>BI8I8', VERSION, now, now + retention) .. h[TOKEN] .. print .. ARGV[a + 3],
        'PX', ceil(retention / 1000))
    end
    if done.err then
      answers[i] = { 0, done.err }
    else
      call('DEL', name)
      answers[i] = OK
    end
  else
    answers[i], rest = false, rest + 1
  end
end
if rest == 0 then return answers end

local mark = (call('GET', KEYS[1]) or 0) + 0
local given = mark

--@key.lua

return each(answers, function(i)
  local a = FIRST + EACH * (i - 1)
  local token, outcome, data, retention = ARGV[a + 1], ARGV[a + 2] + 0, ARGV[a + 3], ARGV[a + 4] + 0
  local k = open(KEYS[i + 1])
  local st = k.st
  advance(k)
  local h, at = holder(st, token)
  local answer = OK
  if h and h[OFFERED] == 0 then
    if outcome == KEEP then write_record(k, token, h[PRINT], data, retention) end
    table.remove(st[HOLDERS], at)
    k.changed = true
    if outcome == ABANDON then
      abandon(k, h, now)
    elseif outcome == UNDO then
      undo(k, h)
    else
      clean(k, token)
      give_up(h)
    end
    hand_over(k)
  elseif outcome == KEEP then
    -- Who does not know that it holds the key has nothing to keep: this was
    -- sent twice, or comes too late.
    local r = record(k)
    answer = r and r.token == token and OK or NOT
  elseif h then
    table.remove(st[HOLDERS], at) -- it gives up a turn that it may not know of
    k.changed = true
    hand_over(k)
  elseif place(k, token) then
    remove_place(k, token)
    hand_over(k)
  else
    local by = taken(st, token)
    if by then
      by[PLACE], k.changed = false, true
    else
      answer = NOT
    end
  end
  close(k)
  return answer
end)
