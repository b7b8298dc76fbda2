-- forcerelease ends leases of any token, and deletes the abandoned row.
--
-- KEYS  the fence, the listed names, the state of the key
-- ARGV  sharded; the token of the lease, or '' for all
--
-- The answer is how many it ended.

local sharded = ARGV[1] == '1'
local mark = highest()
local given = mark

--@key.lua

return forced(function(k)
  local function matches(l) return ARGV[2] == '' or l.token == ARGV[2] end
  local ended = k.abandoned and matches(k.abandoned) and 1 or 0
  for i = #k.leases, 1, -1 do
    if matches(k.leases[i]) then
      finish(k, table.remove(k.leases, i))
      ended = ended + 1
    end
  end
  if ended > 0 then clean(k) end
  return ended
end)
