-- forget deletes a key's record and forgets an abandoned attempt.
--
-- KEYS  the fence, the state of the key
-- ARGV  sharded
--
-- It is answered by 1 when there was anything to forget, and 0 otherwise.

local sharded = ARGV[1] == '1'
local mark = highest()
local given = mark

--@key.lua

return forced(function(k)
  local forgot = max(call('DEL', k.r), k.lost and 1 or 0)
  if forgot == 1 then clean(k) end
  return forgot
end)
