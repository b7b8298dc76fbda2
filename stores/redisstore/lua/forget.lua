-- forget deletes a key's record and its abandoned row.
--
-- KEYS  the fence, the listed names, the state of the key
-- ARGV  sharded; the token of the lease or the record, or '' for both
--
-- Answers: 1 deleted; 0 nothing to delete.

local sharded = ARGV[1] == '1'
local mark = highest()
local given = mark

--@key.lua

return forced(function(k)
  local r = ARGV[2] ~= '' and record(k)
  local forgot = (ARGV[2] == '' or r and r.token == ARGV[2]) and call('DEL', k.r) or 0
  if k.abandoned and (ARGV[2] == '' or k.abandoned.token == ARGV[2]) then
    clean(k)
    forgot = 1
  end
  if forgot == 1 then k.changed, k.freed = true, true end
  return forgot
end)
