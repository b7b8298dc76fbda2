-- renew prolongs leases.
--
-- KEYS  the fence, the listed names, then the state of each key
-- ARGV  sharded; then for each renewal four: token, TTL in µs, whether there is
--       progress, progress
--
-- Answers: 1 done; 2 the token does not hold the key.

local sharded = ARGV[1] == '1'
local FIRST, EACH = 1, 4
local mark = highest()
local given = mark

--@key.lua

return each({}, #KEYS - 2, function(i)
  local a = FIRST + EACH * (i - 1)
  local token, ttl = ARGV[a + 1], ARGV[a + 2] + 0
  local k = open(KEYS[i + 2])
  advance(k)
  local l = holder(k, token)
  if l then
    if ARGV[a + 3] == '1' then -- refused when the server is out of memory
      call('HSET', k.p, digits(l.fence), ARGV[a + 4])
      l.saved, k.progress = 1, true
    end
    l.ends, l.as, k.changed = now + ttl, nil, true
  else
    affirm() -- a replica must not report a token as missing
  end
  close(k)
  return l and 1 or '\2'
end)
