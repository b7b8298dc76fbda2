-- evict ends leases, whoever holds them, and forgets an abandoned attempt.
--
-- KEYS  the fence, the state of the key
-- ARGV  sharded; the token of the attempt, or '' for all
--
-- It is answered by how many were ended.

local sharded = ARGV[1] == '1'
local mark = highest()
local given = mark

--@key.lua

return each({}, #KEYS - 1, function(i)
  local k = open(KEYS[i + 1])
  local st = k.st
  advance(k)
  local function meant(h) return ARGV[2] == '' or h[TOKEN] == ARGV[2] end
  local ended, at = 0, 1
  while at <= #st[HOLDERS] do
    local h = st[HOLDERS][at]
    if meant(h) then
      table.remove(st[HOLDERS], at)
      if st[PROGRESS] == 1 then call('HDEL', k.p, h[TOKEN]) end
      give_up(h)
      ended = ended + 1
    else
      at = at + 1
    end
  end
  if st[LOST] and meant(st[LOST]) then ended = ended + 1 end
  if ended > 0 then
    clean(k)
    hand_over(k)
  end
  close(k)
  return ended
end)
