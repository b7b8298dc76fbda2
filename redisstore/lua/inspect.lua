-- inspect tells what there is to know of keys, and changes nothing.
--
-- KEYS  the state of each key
-- ARGV  whether the records' data is wanted; whether the places are
--
-- Each is answered by
--   permits, waiters, attempts, record, places
-- permits   of the leases, 0 without one
-- waiters   of a long queue those at its end count whose places have ended, too
-- attempts  those who hold it, then the last one that was abandoned, each
--           token, fence, number, since, left, owner, abandoned (0, 1, or 2 when its
--           outcome is unknown)
-- record    token, bytes, age, left, data; empty when there is none
-- places    in their order, of a long queue its beginning, each
--           token, left, reserved, owner
-- or by {0, why} when it failed.

local sharded = false
local given, mark = 0, 0

--@key.lua

local function owner(x)
  return sub(x.claim, OWNER)
end

return each({}, #KEYS, function(i)
  local k = open(KEYS[i], true)
  advance(k)
  front(k) -- what is over there is gone
  local attempts = {}
  local function add(l, abandoned)
    attempts[#attempts + 1] = { l.token, l.fence, l.number, max(now - l.since, 0), l.ends - now, owner(l), abandoned }
  end
  for _, l in ipairs(k.leases) do add(l, 0) end
  if k.lost then add(k.lost, 1 + k.lost.once) end
  local r, found = record(k), {}
  if r then
    found = { r.token, #r.data, max(now - r.written, 0), r.ends - now, ARGV[1] == '1' and r.data or nil }
  end
  local waiters, places = 0, {}
  walk(k, function(x)
    waiters = waiters + 1
    if ARGV[2] == '1' then
      places[waiters] = { x.token, x.ends - now, x.mode == RESERVE and 1 or 0, owner(x) }
    end
    return waiters == MANY
  end)
  if waiters == MANY then waiters = call('ZCARD', k.q) end
  return { k.leases[1] and k.leases[1].permits or 0, waiters, attempts, found, places }
end)
