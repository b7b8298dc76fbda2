-- inspect tells what there is to know of keys, and changes nothing.
--
-- KEYS  the state of each key
-- ARGV  whether the records' data is wanted; whether the places are
--
-- Each is answered by 1, and
--   permits, waiters, attempts, record, places
-- where attempts and places have how many they are before them.
-- permits   of the leases, 0 without one
-- waiters   of a long queue those at its end count whose places have ended, too
-- attempts  those who hold it, then the last one that was abandoned, each
--           token, fence, number, since, left, owner, abandoned (0, 1, or 2 when its
--           outcome is unknown)
-- record    how many there are (0 or 1), token, bytes, age, left, data if it is wanted
-- places    in their order, of a long queue its beginning, each
--           token, left, reserved, owner

local sharded = false
local given, mark = 0, 0

--@key.lua

return each({}, #KEYS, function(i)
  local k = open(KEYS[i], true)
  advance(k)
  front(k) -- what is over there is gone
  local attempts, waiters, record_in, places = {}, 0, pack('>I8', 0), {}
  local function add(l, abandoned)
    attempts[#attempts + 1] = text(l.token)
      .. pack('>I8I8I8I8', l.fence, l.number, max(now - l.since, 0), l.ends - now) .. text(l.owner) .. pack('>I8', abandoned)
  end
  for _, l in ipairs(k.leases) do add(l, 0) end
  if k.lost then add(k.lost, 1 + k.lost.once) end
  local r = record(k)
  if r then
    record_in = pack('>I8', 1) .. text(r.token) .. pack('>I8I8I8', #r.data, max(now - r.written, 0), r.ends - now)
      .. text(ARGV[1] == '1' and r.data or '')
  end
  walk(k, function(x)
    waiters = waiters + 1
    if ARGV[2] == '1' then
      places[waiters] = text(x.token) .. pack('>I8I8', x.ends - now, x.mode == RESERVE and 1 or 0) .. text(x.owner)
    end
    return waiters == MANY
  end)
  if waiters == MANY then waiters = call('ZCARD', k.q) end
  return pack('>BI8I8', 1, k.leases[1] and k.leases[1].permits or 0, waiters)
    .. pack('>I8', #attempts) .. table.concat(attempts) .. record_in .. pack('>I8', #places) .. table.concat(places)
end)
