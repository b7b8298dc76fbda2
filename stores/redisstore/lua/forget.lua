-- forget deletes a key's record and its abandoned row.
--
-- KEYS  the fence, the listed names, the state of the key
-- ARGV  sharded
--
-- Answers: 1 deleted; 0 nothing to delete.

local sharded = ARGV[1] == '1'
local mark = highest()
local given = mark

--@key.lua

return forced(function(k)
  local forgot = max(call('DEL', k.r), k.abandoned and 1 or 0)
  if forgot == 1 then clean(k) end
  return forgot
end)
