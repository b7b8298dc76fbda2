-- inspect describes keys and changes nothing.
--
-- KEYS  the state of each key
-- ARGV  1 to return the records' data; 1 to return the places
--
-- Each answer is 1, and
--   permits, waiters, reserved, attempts, record, places
-- Attempts and places begin with their count.
-- permits   of the leases, 0 without one
-- waiters   the exact count up to 500 places; beyond that, ended places may count
-- reserved  the same of the reserved places at whose number there is no waiter and no lease
-- attempts  the holders, then the abandoned row, each
--           token, fence, number, since, left, owner, abandoned (0, 1, or 2 when its
--           outcome is unknown)
-- record    their count (0 or 1), token, bytes, age, left, data if asked for
-- places    in their order, the first 500, each
--           token, left, use, blocks, owner
-- use       0 a waiter; 1 a reserved place; 2 and a waiter has its number; 3 and a lease
--           was granted at its number
-- blocks    how much longer a reserved place can block

local sharded = false
local given, mark = 0, 0

--@key.lua

return each({}, #KEYS, function(i)
  local k = open(KEYS[i], true)
  advance(k)
  front(k) -- removes places that have ended
  local attempts, record_in, places, n = {}, pack('>I8', 0), {}, 0
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
  -- The waiters at a number come before its reserved place.
  local waiters, reserved, attended = 0, 0, nil
  local function use(number, reserves)
    if not reserves then
      waiters, attended = waiters + 1, number
      return 0
    end
    if leased(k, number) then return 3 end
    if attended == number then return 2 end
    reserved = reserved + 1
    return 1
  end
  walk(k, function(x)
    n = n + 1
    local used = use(x.place, x.mode == RESERVE)
    if ARGV[2] == '1' then
      local blocks = x.ends - now
      if used == 0 then
        blocks = 0
      elseif x.hold > 0 then
        blocks = min(blocks, k.free > 0 and max(k.free, x.asked) + x.hold - now or x.hold)
      end
      places[n] = text(x.token) .. pack('>I8I8I8', x.ends - now, used, blocks) .. text(x.owner)
    end
    return n == MANY
  end)
  local at = n
  while n == MANY do
    local more = call('ZRANGE', k.q, at, at + MANY - 1, 'WITHSCORES')
    for j = 1, #more, 2 do use(more[j + 1] + 0, more[j]:byte() == 1) end
    at, n = at + #more / 2, #more / 2
  end
  return pack('>BI8I8I8', 1, k.leases[1] and k.leases[1].permits or 0, waiters, reserved)
    .. pack('>I8', #attempts) .. table.concat(attempts) .. record_in .. pack('>I8', #places) .. table.concat(places)
end)
