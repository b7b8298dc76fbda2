-- resolve settles an unknown outcome with a record.
--
-- KEYS  the fence, the listed names, the state of the key
-- ARGV  sharded; the token of the lease, or '' for any; data; retention
--       in µs
--
-- Answers: 1 done; 0 no outcome is unknown.

local sharded = ARGV[1] == '1'
local mark = highest()
local given = mark

--@key.lua

return forced(function(k)
  local l = k.abandoned
  if not unknown(k) or ARGV[2] ~= '' and ARGV[2] ~= l.token then return 0 end
  keep(k, l.token, l.print, ARGV[4] + 0, ARGV[3])
  clean(k)
  return 1
end)
