-- What can happen to a key. k is one that is being worked on: the names of its parts, its
-- state, whether that has to be written (changed), and whether something was freed that
-- the next waiter may have (freed). With looks, nothing is changed but this copy.

local CLAIM = '>xxxxxBI8c16BI4I4Bc0I8I8c32I8I8c16'
local HEAD, ATTEMPT, PLACE = '>BI8I8B', '>I8I8BI8I8I8I8', '>I8I8I8I8s'
local NONE, NOBODY = string.rep('\0', 16), string.rep('\0', 32) -- no token, no fingerprint

local SLACK = 5000000 -- so that asking again need not write the state
local MANY = 500      -- how many places are read at a time
local QUEUE, RESERVE, LOOK = 1, 2, 3 -- dibs.Mode
local SOON = '?'

local affirmed = false

-- affirm fails where the server takes no writes. Where it is out of memory, the script
-- may go on writing then: it has begun to.
local function affirm()
  if not affirmed then call('PERSIST', KEYS[1]) end -- the fence, which has no expiry
  affirmed = true
end

-- An element's answer begins with a byte that says what it is, 0 for why it failed. Then
-- come numbers of 8 bytes, and texts with their length as such a number before them. A
-- number instead is short for a 1 and that number.
local function failed(why)
  return '\0' .. why
end

local function text(s)
  return pack('>I8c0', #s, s)
end

-- read returns a claim by its fields. A lease and a place have these, and more.
local function read(claim)
  local once, ttl, token, mode, permits, weight, owner, turn, stay, print, maxage, hold, from = unpack(CLAIM, claim .. ZEROS .. ZEROS)
  return {
    claim = claim, mode = mode, once = once, permits = permits, weight = weight,
    ttl = ttl, turn = turn, stay = stay, hold = hold, maxage = maxage, token = token, from = from, print = print, owner = owner,
  }
end

local function read_state(k, v)
  local version, lost, at
  version, k.free, k.queue, lost, at = unpack(HEAD, v)
  if version ~= VERSION then error() end
  if k.queue <= now then k.queue, k.free = 0, 0 end
  while at <= #v do
    local place, inherits, saved, number, fence, since, ends, from = unpack(ATTEMPT, v, at)
    local next = from + 4 + unpack('>I4', v, from)
    local claim = sub(v, from, next - 1)
    local once, token, permits, weight, owner, print = unpack(LEASE, claim .. ZEROS .. ZEROS)
    k.leases[#k.leases + 1] = {
      fence = fence, since = since, ends = ends, number = number, place = place, inherits = inherits, saved = saved,
      claim = claim, once = once, permits = permits, weight = weight, token = token, print = print, owner = owner,
      as = sub(v, at, next - 1), -- while it is as it was
    }
    if saved == 1 or inherits ~= 0 then k.progress = true end
    at = next
  end
  if lost == 1 then k.lost = table.remove(k.leases) end
end

local function open(name, looks)
  local base = sub(name, 1, -2)
  local k = {
    s = name, q = base .. 'q', w = base .. 'w', r = base .. 'r', p = base .. 'p',
    leases = {}, free = 0, queue = 0, gone = {}, told = {}, looks = looks,
  }
  local v = call('GET', name)
  if v then
    if not pcall(read_state, k, v) then error(WRONG, 0) end
    k.found = true
  end
  return k
end

-- tidy deletes the progress that nobody inherits any more.
local function tidy(k, ms)
  local used = {}
  for _, l in ipairs(k.leases) do
    used[digits(l.inherits)], used[digits(l.fence)] = true, true
  end
  if k.lost then used[digits(k.lost.inherits)] = true end
  for _, fence in ipairs(call('HKEYS', k.p)) do
    if not used[fence] then call('HDEL', k.p, fence) end
  end
  call('PEXPIRE', k.p, ms)
end

-- write writes the state if it has changed.
local function write(k)
  if not k.changed or k.looks then return end
  if k.found then affirm() end
  local ends = k.queue
  local v = { pack(HEAD, VERSION, k.free, k.queue, k.lost and 1 or 0) }
  local function add(l)
    ends = max(ends, l.ends + memory(l.once))
    v[#v + 1] = l.as or pack(ATTEMPT, l.place, l.inherits, l.saved, l.number, l.fence, l.since, l.ends) .. l.claim
  end
  for _, l in ipairs(k.leases) do add(l) end
  if k.lost then add(k.lost) end
  local ms = max(ceil((ends - now) / 1000), 0)
  if ms > 0 then
    call('SET', k.s, table.concat(v), 'PX', ms)
  elseif k.found then
    call('DEL', k.s)
  end
  k.found, k.changed = ms > 0, false
  if k.progress then tidy(k, ms) end
end

local function differs(a, b)
  return a ~= NOBODY and b ~= NOBODY and a ~= b
end

local function unknown(k)
  return k.lost and k.lost.once == 1
end

-- holder returns the token's lease, and where it is.
local function holder(k, token)
  for i, l in ipairs(k.leases) do
    if l.token == token then return l, i end
  end
end

-- leased reports whether a lease stands that was granted at that number.
local function leased(k, number)
  for _, l in ipairs(k.leases) do
    if l.place == number then return true end
  end
  return false
end

-- spare returns how many permits the leases leave to a claim with so many.
local function spare(k, permits)
  local left = permits
  for _, l in ipairs(k.leases) do
    if l.permits ~= permits then return 0 end
    left = left - l.weight
  end
  return left
end

local heard = { [''] = false, [SOON] = false } -- by channel: whether anybody listens

-- listens reports whether anybody listens for a waiter. It is counted before anything is
-- said: replicas pass on what is published to others, whom the master does not count, and
-- no grant may be told that is not made.
local function listens(x)
  if heard[x.channel] == nil then
    heard[x.channel] = call('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', x.channel)[2] > 0
  end
  return heard[x.channel]
end

-- publish tells a waiter something, once a step.
local function publish(k, x, message)
  if k.told[x.token] or not listens(x) then return end
  k.told[x.token] = true
  call(sharded and 'SPUBLISH' or 'PUBLISH', x.channel, message)
end

local function read_place(v)
  local ends, number, hold, asked, channel, at = unpack(PLACE, v)
  local x = read(sub(v, at))
  x.ends, x.place, x.hold, x.asked, x.channel = ends, number, hold, asked, channel
  return x
end

local function write_place(k, x)
  call('HSET', k.w, x.token, pack(PLACE, x.ends, x.place, x.hold, x.asked, x.channel) .. x.claim)
end

local function member(x)
  return (x.mode == RESERVE and '\1' or '\0') .. x.token
end

-- remove ends a place.
local function remove(k, x)
  k.gone[x.token], k.freed = true, true
  if k.looks then return end
  call('ZREM', k.q, member(x))
  call('HDEL', k.w, x.token)
end

-- place returns the place of a token, if it has one.
local function place(k, token)
  local v = k.queue > now and not k.gone[token] and call('HGET', k.w, token)
  local x = v and read_place(v)
  if x and x.ends <= now then return remove(k, x) end
  return x or nil
end

-- walk calls f with the places in their order, until it returns true. Those that have
-- ended go. It reads more at a time the more there are: thousands can end at once.
local function walk(k, f)
  local at, n, stop = 0, 1, false
  while k.queue > now and not stop do
    local members = call('ZRANGE', k.q, at, at + n - 1)
    if #members == 0 then
      if at == 0 then k.queue, k.free, k.changed = 0, 0, true end
      return
    end
    local tokens, over, ended = {}, {}, {}
    for i, m in ipairs(members) do tokens[i] = sub(m, 2) end
    for i, v in ipairs(call('HMGET', k.w, spread(tokens))) do
      local token = tokens[i]
      if not v or unpack('>I8', v) <= now then -- before it is read: there may be thousands
        over[#over + 1], ended[#ended + 1] = members[i], token
        k.gone[token], k.freed = true, true
      elseif not k.gone[token] and f(read_place(v)) then
        stop = true
        break
      end
      if k.looks or not k.gone[token] then at = at + 1 end
    end
    if #over > 0 and not k.looks then
      call('ZREM', k.q, spread(over))
      call('HDEL', k.w, spread(ended))
    end
    n = min(4 * n, MANY)
  end
end

-- in_the_way is walk with those places that can keep others from the key.
local function in_the_way(k, f)
  walk(k, function(x)
    if leased(k, x.place) then return false end
    if x.mode == RESERVE and x.hold > 0 and k.free > 0 and max(k.free, x.asked) + x.hold <= now then
      remove(k, x) -- its hold is over
      return false
    end
    return f(x)
  end)
end

-- front returns the place in front: a waiter, or a reserved place where nobody waits.
local function front(k)
  local first
  in_the_way(k, function(x)
    first = x
    return true
  end)
  return first
end

-- record returns the fields of a key's record, if it has one.
local function record(k)
  local v = call('GET', k.r)
  if not v then return nil end
  local ok, version, written, ends, token, print, at = pcall(unpack, RECORD, v)
  if not ok or version ~= VERSION then error(WRONG, 0) end
  if ends <= now then return nil end
  return { written = written, ends = ends, token = token, print = print, data = sub(v, at) }
end

local GRANTED, HELD, FREE, DONE, MISMATCH, UNKNOWN = 1, 2, 3, 4, 5, 6

-- refuses answers a claim that is not for want of its turn: how, and what there is to say.
local function refuses(k, c)
  for _, l in ipairs(k.leases) do
    if differs(l.print, c.print) then return MISMATCH end
  end
  if k.lost and differs(k.lost.print, c.print) then return MISMATCH end
  local r = c.maxage > 0 and record(k)
  if r and now - r.written <= c.maxage then
    if differs(r.print, c.print) then return MISMATCH end
    return DONE, pack('>I8I8', max(now - r.written, 0), r.ends - now) .. text(r.data) -- the clock may have been set back
  end
  if unknown(k) then return UNKNOWN, text(k.lost.token) end
end

-- grant makes a claim a lease, at the number if that is not nil. own is the place where
-- its own token waits.
local function grant(k, c, own, number, ttl)
  if own then
    remove(k, own)
    if call('ZCOUNT', k.q, digits(number), digits(number)) == 0 then number = nil end
  end
  local reserved = number and c.hold > 0 and place(k, c.from)
  if reserved then
    reserved.hold = c.hold
    write_place(k, reserved)
  end
  given = max(given + 1, now)
  c.fence, c.since, c.ends, c.place, c.saved = given, now, now + ttl, number or 0, 0
  c.number, c.inherits = 1, 0
  if k.lost then c.number, c.inherits = k.lost.number + 1, k.lost.inherits end
  k.leases[#k.leases + 1] = c
  k.free, k.changed, k.freed = 0, true, spare(k, c.permits) > 0
  return c
end

-- hand_over gives the key to the waiters in front, as far as there is room. It passes over
-- those that nobody listens for, and leaves the key to one that asks by itself.
local function hand_over(k)
  if unknown(k) then return end
  in_the_way(k, function(x)
    if x.mode == RESERVE or x.channel == SOON or spare(k, x.permits) < x.weight then return true end
    if not listens(x) then return false end
    local plain = x.turn > 0 and not k.lost and not refuses(k, x)
    affirm() -- a waiter that is told of a lease has to have it
    publish(k, x, plain and x.token .. pack('>I8', max(given + 1, now)) or x.token)
    if not plain then return true end
    grant(k, x, x, x.place, x.turn)
    k.served = true
  end)
end

-- serve is hand_over, and writes the state. A waiter that was told of a lease has it,
-- whatever fails then or from here on.
local function serve(k)
  if k.looks then return end
  local ok, why = pcall(hand_over, k)
  k.freed = false
  if ok or k.served then write(k) end
  if not ok then error(why, 0) end
end

-- close is how each step on a key ends.
local function close(k)
  if k.freed then serve(k) end
  write(k)
end

-- tell tells the waiters of at least that MaxAge that they should ask. Those behind many
-- others find out by themselves: no queue is gone through for that.
local function tell(k, maxage)
  if k.looks or k.queue <= now then return end
  local tokens = {}
  for _, m in ipairs(call('ZRANGE', k.q, 0, MANY - 1)) do
    if m:byte() == 0 then tokens[#tokens + 1] = sub(m, 2) end
  end
  for _, v in ipairs(tokens[1] and call('HMGET', k.w, spread(tokens)) or {}) do
    local x = v and read_place(v)
    if x and x.maxage >= maxage then publish(k, x, x.token) end
  end
end

-- abandon notes that a lease, which is no holder any more, ended then without being
-- settled.
local function abandon(k, l, ended)
  local last = k.lost
  l.number, l.ends, l.place = (last and last.number or 0) + 1, ended, 0
  l.as, l.inherits, l.saved = nil, l.saved == 1 and l.fence or last and last.inherits or 0, 0
  k.lost, k.changed, k.freed = l, true, true
  if l.once == 1 then tell(k, 0) end
end

-- clean forgets what was abandoned.
local function clean(k)
  k.lost, k.changed, k.freed = nil, true, true
end

-- finish is the clean end of a lease, which is no holder any more, and of all places at
-- its number.
local function finish(k, l)
  clean(k)
  if l.place == 0 or k.queue <= now then return end
  for _, m in ipairs(call('ZRANGE', k.q, digits(l.place), digits(l.place), 'BYSCORE')) do
    local x = place(k, sub(m, 2))
    if x then
      if x.mode ~= RESERVE then publish(k, x, x.token) end
      remove(k, x)
    end
  end
end

-- advance lets time pass: leases that have ended were abandoned.
local function advance(k)
  local live, over = {}, {}
  for _, l in ipairs(k.leases) do
    local list = l.ends > now and live or over
    list[#list + 1] = l
  end
  k.leases = live
  table.sort(over, function(a, b) return a.ends < b.ends end)
  for _, l in ipairs(over) do abandon(k, l, l.ends) end
  if k.lost and k.lost.once == 0 and k.lost.ends + MEMORY <= now then clean(k) end
end

-- keep writes the key's record, and tells those whom it can answer.
local function keep(k, token, print, retention, data)
  call('SET', k.r, record_of(token, print, retention, data), 'PX', ceil(retention / 1000))
  tell(k, 1)
end

-- each lets f answer each of so many elements that has no answer yet. One that fails is
-- answered why.
local function each(answers, count, f)
  for i = 1, count do
    if not answers[i] then
      local ok, answer = pcall(f, i)
      if not ok then answer = failed(type(answer) == 'table' and answer.err or answer) end
      answers[i] = answer
    end
  end
  if given > mark then pcall_redis('SET', KEYS[1], digits(given)) end
  return answers
end

-- forced lets f do something to each key, whoever holds it. It is answered by the number
-- that f returns.
local function forced(f)
  return each({}, #KEYS - 1, function(i)
    affirm()
    local k = open(KEYS[i + 1])
    advance(k)
    local answer = f(k)
    close(k)
    return answer
  end)
end
