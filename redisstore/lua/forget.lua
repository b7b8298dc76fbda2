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

return each({}, #KEYS - 1, function(i)
  local k = open(KEYS[i + 1])
  advance(k)
  local forgot = call('DEL', k.r)
  if k.st[LOST] then
    clean(k)
    hand_over(k)
    forgot = 1
  end
  close(k)
  return forgot
end)
