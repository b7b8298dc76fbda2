-- resolve gives an unknown outcome its record.
--
-- KEYS  the fence, the state of the key
-- ARGV  sharded; the token of the attempt, or '' for whichever; data; retention
--       in µs
--
-- It is answered by 1 when it did, and by 0 when nothing is unknown.

local sharded = ARGV[1] == '1'
local mark = highest()
local given = mark

--@key.lua

return forced(function(k)
  local l = k.lost
  if not unknown(k) or ARGV[2] ~= '' and ARGV[2] ~= l.token then return 0 end
  keep(k, l.token, l.print, ARGV[4] + 0, ARGV[3])
  clean(k)
  return 1
end)
