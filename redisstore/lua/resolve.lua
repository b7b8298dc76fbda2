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

return each({}, #KEYS - 1, function(i)
  local k = open(KEYS[i + 1])
  advance(k)
  local h, done = k.st[LOST], 0
  if unknown(k.st) and (ARGV[2] == '' or ARGV[2] == h[TOKEN]) then
    write_record(k, h[TOKEN], h[PRINT], ARGV[3], ARGV[4] + 0)
    clean(k)
    hand_over(k)
    done = 1
  end
  close(k)
  return done
end)
