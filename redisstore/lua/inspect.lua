-- inspect describes keys and changes nothing.
--
-- KEYS  the state of each key
-- ARGV  1 to return the records' data; 1 to return the places
--
-- Each answer is 1, and
--   permits, waiters, attempts, record, places
-- Attempts and places begin with their count.
-- permits   of the leases, 0 without one
-- waiters   the exact count of live places up to 500; beyond that, ended places may count
-- attempts  the holders, then the abandoned row, each
--           token, fence, number, since, left, owner, abandoned (0, 1, or 2 when its
--           outcome is unknown)
-- record    their count (0 or 1), token, bytes, age, left, data if asked for
-- places    in their order, the first 500, each
--           token, left, reserved, owner

local sharded = false
local given, mark = 0, 0

--@key.lua

return each({}, #KEYS, function(i)
  local k = open(KEYS[i], true)
  advance(k)
  front(k) -- removes places that have ended
  local attempts, waiters, record_in, places = {}, 0, pack('>I8', 0), {}
  local function add(l, abandoned)
    attempts[#attempts + 1] = text(l.token)
      .. pack('>I8I8I8I8', l.fence, l.number, max(now - l.since, 0), l.ends - now) .. text(l.owner) .. pack('>I8', abandoned)
  end
  for _, l in ipairs(k.leases) do add(l, 0) end
  if k.abandoned then add(k.abandoned, 1 + k.abandoned.once) end
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
