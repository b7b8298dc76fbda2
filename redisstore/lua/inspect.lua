-- inspect tells what there is to know of keys, and changes nothing.
--
-- KEYS  the state of each key
-- ARGV  whether the records' data is wanted; whether the places are
--
-- Each is answered by
--   permits, waiters, attempts, record, places
-- waiters   of a long queue those at its end count who have run out, too
-- permits   0 when nobody holds the key or waits for it
-- attempts  those who hold it, then the last one that was abandoned, each
--           token, fence, number, since, left, offered, owner, abandoned (0, 1,
--           or 2 when its outcome is unknown)
-- record    token, bytes, age, left, data; empty when there is none
-- places    in their order, of a long queue its beginning, each
--           token, left, reserved, owner
-- or by {0, why} when it failed.

local sharded = false
local given, mark = 0, 0

--@key.lua

local function attempt(h, abandoned)
  return { h[TOKEN], h[FENCE], h[NUMBER], max(now - h[SINCE], 0), h[ENDS] - now, h[OFFERED], h[OWNER], abandoned }
end

local answers = {}
for i, name in ipairs(KEYS) do
  local ok, answer = pcall(function()
    local k = open(name)
    local st = k.st
    local standing = {}
    for _, p in ipairs(fallen(st)) do standing[#standing + 1] = { p[P_TOKEN], p } end
    local attempts, lost, waiters = {}, st[LOST], #standing
    for _, h in ipairs(st[HOLDERS]) do
      if h[ENDS] > now then
        attempts[#attempts + 1] = attempt(h, 0)
      elseif h[OFFERED] == 0 and not (lost and lost[ENDS] > h[ENDS]) then
        lost = h
      end
    end
    local tokens = st[QUEUE] > 0 and call('ZRANGE', k.q, 0, MANY - 1) or {}
    if #tokens > 0 then
      waiters = waiters + call('ZCARD', k.q)
      for n, v in ipairs(call('HMGET', k.w, spread(tokens))) do
        if not v or ended(v) then
          waiters = waiters - 1
        elseif ARGV[2] == '1' then
          standing[#standing + 1] = { tokens[n], unpack(v) }
        end
      end
    end
    local inuse = #attempts > 0 or waiters > 0
    if lost and (lost[ONCE] == 1 or lost[ENDS] + MEMORY > now) then
      attempts[#attempts + 1] = attempt(lost, 1 + lost[ONCE])
    end
    local r, found = record(k), {}
    if r then
      found = { r.token, #r.data, max(now - r.written, 0), r.ends - now }
      if ARGV[1] == '1' then found[5] = r.data end
    end
    local places = {}
    if ARGV[2] == '1' then
      table.sort(standing, function(a, b) return a[2][P_ORDER] < b[2][P_ORDER] end)
      for n, s in ipairs(standing) do
        places[n] = { s[1], s[2][P_ENDS] - now, s[2][P_RESERVED], s[2][P_OWNER] }
      end
    end
    return { inuse and st[PERMITS] or 0, waiters, attempts, found, places }
  end)
  answers[i] = ok and answer or { 0, type(answer) == 'table' and answer.err or answer }
end
return answers
