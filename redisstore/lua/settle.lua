-- settle ends leases and gives up places.
--
-- KEYS  the fence, then the state of each key
-- ARGV  sharded; then for each settlement 1 byte outcome (dibs.Outcome), 16 bytes
--       token, 8 bytes retention in µs, and data
--
-- Each is answered by 1 when it is done, 2 when the token neither holds the key
-- nor waits for it, and {0, why} when it failed.

local sharded = ARGV[1] == '1'
local FIRST, DATA = 1, 26
local RELEASE, KEEP, ABANDON, UNDO = 0, 1, 2, 3
local OK, NOT = 1, 2

-- The short way of a lease that is plain.
local answers, rest = {}, 0
local pcall_redis, unpack_struct = redis.pcall, struct.unpack
for i = 1, #KEYS - 1 do
  local settlement, name = ARGV[FIRST + i], KEYS[i + 1]
  local outcome, token, retention = unpack_struct('>Bc16I8', settlement)
  local v = outcome <= KEEP and pcall_redis('GET', name)
  if v and not v.err and v:byte() == VERSION and sub(v, PLAIN_TOKEN, PLAIN_TOKEN + 15) == token
    and unpack_struct('>I8', v, PLAIN_ENDS) > now then
    local failed = outcome == KEEP and insist('SET', sub(name, 1, -2) .. 'r',
      struct.pack('>BI8I8', VERSION, now, now + retention) .. token .. sub(v, PLAIN_PRINT, PLAIN_PRINT + 31) .. sub(settlement, DATA),
      'PX', ceil(retention / 1000))
    if failed then
      answers[i] = { 0, failed.err }
    else
      call('DEL', name)
      answers[i] = OK
    end
  else
    answers[i], rest = false, rest + 1
  end
end
if rest == 0 then return answers end

local mark = highest()
local given = mark

--@key.lua

return each(answers, #KEYS - 1, function(i)
  local outcome, token, retention = struct.unpack('>Bc16I8', ARGV[FIRST + i])
  local k = open(KEYS[i + 1])
  local st = k.st
  advance(k)
  local h, at = holder(st, token)
  local answer = OK
  if h and h[OFFERED] == 0 then
    if outcome == KEEP then write_record(k, token, h[PRINT], sub(ARGV[FIRST + i], DATA), retention) end
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
    if r and r.token == token then
      call('PEXPIRE', k.r, ceil((r.ends - now) / 1000)) -- a write, for those who wait for replicas
    else
      answer = NOT
    end
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
  if answer == NOT then affirm() end
  return answer
end)
