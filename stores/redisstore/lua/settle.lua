-- settle ends leases and places.
--
-- KEYS  the fence, the listed names, then the state of each key
-- ARGV  sharded; then for each settlement 1 byte outcome (store.Outcome), 16 bytes
--       token, 8 bytes retention in µs, and data
--
-- Answers: 1 done; 2 the token neither holds the key nor has a place.

local sharded = ARGV[1] == '1'
local FIRST, SETTLEMENT, DATA = 1, '>Bc16I8', 26
local RELEASE, KEEP, ABANDON, UNDO = 0, 1, 2, 3
local OK, NOT = 1, '\2'

-- The fast path: a key with one lease and nothing else.
local answers, rest, listed = {}, 0, {}
for i = 1, #KEYS - 2 do
  local settlement, name = ARGV[FIRST + i], KEYS[i + 2]
  local outcome, token, retention = unpack(SETTLEMENT, settlement)
  local v = outcome <= KEEP and pcall_redis('GET', name)
  if v and not v.err and sub(v, P_TOKEN, P_TOKEN + 15) == token and sub(v, 1, #PLAIN) == PLAIN then
    local since, ends, length, once = unpack('>I8I8I4xB', v, P_SINCE)
    if ends > now and P_CLAIM + 3 + length == #v then
      local print = outcome == KEEP and select(6, unpack(LEASE, sub(v, P_CLAIM) .. ZEROS .. ZEROS))
      if (not print or pcall_redis('SET', sub(name, 1, -2) .. 'r',
        record_of(token, print, retention, sub(settlement, DATA)), 'PX', ceil(retention / 1000)).ok)
        and pcall_redis('DEL', name) == 1 then
        answers[i] = OK
        if once == 1 or ends - since >= MINUTE then listed[#listed + 1] = name end
      end
    end
  end
  if not answers[i] then rest = rest + 1 end -- the full path decides
end
if #listed > 0 then unlist(spread(listed)) end
if rest == 0 then return answers end

local mark = highest()
local given = mark

--@key.lua

return each(answers, #KEYS - 2, function(i)
  local outcome, token, retention = unpack(SETTLEMENT, ARGV[FIRST + i])
  affirm() -- a replica must not report a token as missing
  local k = open(KEYS[i + 2])
  advance(k)
  local l, at = holder(k, token)
  local x = place(k, token)
  if x and x.channel == KEPT then x = remove(k, x) end
  local answer = OK
  if l then
    if outcome == KEEP then keep(k, token, l.print, retention, sub(ARGV[FIRST + i], DATA)) end
    table.remove(k.leases, at)
    k.changed, k.freed = true, true
    if outcome == ABANDON then
      abandon(k, l, now)
    elseif outcome ~= UNDO then
      finish(k, l)
    end
  elseif outcome == KEEP then -- sent twice, or too late
    local r = record(k)
    if r and r.token == token then
      call('PEXPIRE', k.r, ceil((r.ends - now) / 1000)) -- a write, so that WAIT covers it
    else
      answer = NOT
    end
  else
    if x then remove(k, x) else answer = NOT end
  end
  close(k)
  return answer
end)
