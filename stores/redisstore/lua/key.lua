-- The steps on a key. k is the key of the step: the names of its parts; its state; changed,
-- if the state must be written; freed, if the next waiter may be granted something. With
-- looks, nothing but this copy changes.

local CLAIM = '>xxxxxBI8c16BI4I4Bc0I8I8c32I8I8c16'
local HEAD, ATTEMPT, PLACE = '>BI8I8B', '>I8I8BI8I8I8I8', '>I8I8I8I8s'
local NONE, NO_PRINT = string.rep('\0', 16), string.rep('\0', 32) -- no token, no fingerprint

local SLACK = 5000000 -- added to k.queue, so that a renewed place rarely writes the state
local MANY = 500      -- most places that are read at once
local QUEUE, RESERVE, LOOK = 1, 2, 3 -- store.Mode
local PENDING, KEPT = '?', '!'

local affirmed = false

-- affirm fails if the server takes no writes. If the server is out of memory, a script
-- that has written once may go on writing.
local function affirm()
  if not affirmed then call('PERSIST', KEYS[1]) end -- no effect: the fence has no expiry
  affirmed = true
end

-- An element's answer begins with a byte for its kind; 0: an error's text follows. Other
-- answers go on with 8-byte numbers, and texts after their length. A Lua number is short
-- for kind 1 and that number.
local function failed(why)
  return '\0' .. why
end

local function text(s)
  return pack('>I8c0', #s, s)
end

-- read returns a claim's fields. Leases and places have these and more.
local function read(claim)
  local once, ttl, token, mode, permits, weight, owner, pushed, placettl, print, maxage, grace, from = unpack(CLAIM, claim .. ZEROS .. ZEROS)
  return {
    claim = claim, mode = mode, once = once, permits = permits, weight = weight,
    ttl = ttl, pushed = pushed, placettl = placettl, grace = grace, maxage = maxage, token = token, from = from, print = print, owner = owner,
  }
end

local function read_state(k, v)
  local version, abandoned, at
  version, k.free, k.queue, abandoned, at = unpack(HEAD, v)
  if version ~= VERSION then error() end
  k.expires, k.listed = k.queue, k.queue > 0
  if k.queue <= now then k.queue, k.free = 0, 0 end
  while at <= #v do
    local place, inherits, saved, number, fence, since, ends, from = unpack(ATTEMPT, v, at)
    local next = from + 4 + unpack('>I4', v, from)
    local claim = sub(v, from, next - 1)
    local once, token, permits, weight, owner, print = unpack(LEASE, claim .. ZEROS .. ZEROS)
    k.leases[#k.leases + 1] = {
      fence = fence, since = since, ends = ends, number = number, place = place, inherits = inherits, saved = saved,
      claim = claim, once = once, permits = permits, weight = weight, token = token, print = print, owner = owner,
      as = sub(v, at, next - 1), -- the stored bytes, until the lease changes
    }
    if saved == 1 or inherits ~= 0 then k.progress = true end
    k.expires, k.listed = max(k.expires, ends + memory(once)), k.listed or once == 1 or ends - since >= MINUTE
    at = next
  end
  if abandoned == 1 then k.abandoned = table.remove(k.leases) end
end

local function open(name, looks)
  local base = sub(name, 1, -2)
  local k = {
    s = name, q = base .. 'q', w = base .. 'w', r = base .. 'r', p = base .. 'p',
    leases = {}, free = 0, queue = 0, expires = 0, removed = {}, notified = {}, looks = looks,
  }
  local v = call('GET', name)
  if v then
    if not pcall(read_state, k, v) then error(WRONG, 0) end
    k.found = true
  end
  return k
end

-- tidy deletes progress that no later lease will inherit.
local function tidy(k, ms)
  local used = {}
  for _, l in ipairs(k.leases) do
    used[digits(l.inherits)], used[digits(l.fence)] = true, true
  end
  if k.abandoned then used[digits(k.abandoned.inherits)] = true end
  for _, fence in ipairs(call('HKEYS', k.p)) do
    if not used[fence] then call('HDEL', k.p, fence) end
  end
  call('PEXPIRE', k.p, ms)
end

-- write writes a changed state.
local function write(k)
  if not k.changed or k.looks then return end
  if k.found then affirm() end
  local ends, listed = k.queue, k.queue > 0
  local v = { pack(HEAD, VERSION, k.free, k.queue, k.abandoned and 1 or 0) }
  local function add(l)
    ends, listed = max(ends, l.ends + memory(l.once)), listed or l.once == 1 or l.ends - l.since >= MINUTE
    v[#v + 1] = l.as or pack(ATTEMPT, l.place, l.inherits, l.saved, l.number, l.fence, l.since, l.ends) .. l.claim
  end
  for _, l in ipairs(k.leases) do add(l) end
  if k.abandoned then add(k.abandoned) end
  local ms = max(ceil((ends - now) / 1000), 0)
  if ms > 0 then
    call('SET', k.s, table.concat(v), 'PX', ms)
  elseif k.found then
    call('DEL', k.s)
    listed = false
  end
  if listed and not (k.listed and ends == k.expires) then
    list(digits(floor(now / 1000) + ms), k.s)
    k.expires = ends
  elseif k.listed and not listed then
    unlist(k.s)
  end
  k.found, k.changed, k.listed = ms > 0, false, listed
  if k.progress then tidy(k, ms) end
end

local function differs(a, b)
  return a ~= NO_PRINT and b ~= NO_PRINT and a ~= b
end

local function unknown(k)
  return k.abandoned and k.abandoned.once == 1
end

-- holder returns the token's lease and its index.
local function holder(k, token)
  for i, l in ipairs(k.leases) do
    if l.token == token then return l, i end
  end
end

-- leased reports whether a lease was granted at that number and is live.
local function leased(k, number)
  for _, l in ipairs(k.leases) do
    if l.place == number then return true end
  end
  return false
end

-- spare returns how many permits the leases leave for a claim with that many permits.
local function spare(k, permits)
  local left = permits
  for _, l in ipairs(k.leases) do
    if l.permits ~= permits then return 0 end
    left = left - l.weight
  end
  return left
end

--@queue.lua

-- record returns the fields of the key's record, or nil.
local function record(k)
  local v = call('GET', k.r)
  if not v then return nil end
  local ok, version, written, ends, token, print, at = pcall(unpack, RECORD, v)
  if not ok or version ~= VERSION then error(WRONG, 0) end
  if ends <= now then return nil end
  return { written = written, ends = ends, token = token, print = print, data = sub(v, at) }
end

local GRANTED, HELD, FREE, DONE, MISMATCH, UNKNOWN = 1, 2, 3, 4, 5, 6

-- refusal returns the answer to a claim that cannot be granted, whatever its place is, or nil.
local function refusal(k, c)
  for _, l in ipairs(k.leases) do
    if differs(l.print, c.print) then return MISMATCH end
  end
  if k.abandoned and differs(k.abandoned.print, c.print) then return MISMATCH end
  local r = c.maxage > 0 and record(k)
  if r and now - r.written <= c.maxage then
    if differs(r.print, c.print) then return MISMATCH end
    return DONE, pack('>I8I8', max(now - r.written, 0), r.ends - now) .. text(r.data) -- 0 if the clock was set back
  end
  if unknown(k) then return UNKNOWN, text(k.abandoned.token) end
end

-- grant makes a claim a lease, at the number if that is not nil. own is the place of its
-- token. The claim's Grace goes to the reserved place at the number, even when the claim is
-- from another one.
local function grant(k, c, own, number, ttl)
  if own then remove(k, own) end
  local at = number and call('ZRANGE', k.q, digits(number), digits(number), 'BYSCORE') or {}
  if #at == 0 then number = nil end
  local reserved = c.grace > 0 and #at > 0 and place(k, sub(at[#at], 2))
  if reserved and reserved.mode == RESERVE then
    reserved.grace = c.grace
    write_place(k, reserved)
  end
  given = max(given + 1, now)
  c.fence, c.since, c.ends, c.place, c.saved = given, now, now + ttl, number or 0, 0
  c.number, c.inherits = 1, 0
  if k.abandoned then c.number, c.inherits = k.abandoned.number + 1, k.abandoned.inherits end
  k.leases[#k.leases + 1] = c
  k.free, k.changed, k.freed = 0, true, spare(k, c.permits) > 0
  return c
end

-- hand_over grants the key to the waiters in front while there is room. It passes over
-- waiters whose process does not listen. It stops at a waiter whose process is about to
-- listen, because that one asks by itself. The caller of a process that relays is likely to
-- ask elsewhere within PushedTTL, so its grant is made even if nobody hears of it, and the
-- waiter keeps its number if that grant expires.
local function hand_over(k)
  if unknown(k) then return end
  in_the_way(k, function(x)
    if x.mode == RESERVE or x.channel == PENDING or spare(k, x.permits) < x.weight then return true end
    local relayed = sub(x.channel, -1) == RELAYED
    if not listens(x) and not relayed then return false end
    local plain = x.pushed > 0 and not k.abandoned and not refusal(k, x)
    if relayed and (plain or not listens(x)) then keep_number(k, x) end
    if x.kept and not plain then return false end
    affirm() -- the grant is published before it is written
    publish(k, x, plain and x.token .. pack('>I8', max(given + 1, now)) or x.token)
    if not plain then return true end
    grant(k, x, not x.kept and x or nil, x.place, x.pushed)
    k.served = true
  end)
end

-- serve hands over and writes the state. A published grant is written even if a later
-- waiter fails.
local function serve(k)
  if k.looks then return end
  local ok, why = pcall(hand_over, k)
  k.freed = false
  if ok or k.served then write(k) end
  if not ok then error(why, 0) end
end

-- close ends a step on a key.
local function close(k)
  if k.freed then serve(k) end
  write(k)
end

-- notify lets waiters with at least that MaxAge ask again. Only the first places of a
-- long queue are read; waiters behind them poll.
local function notify(k, maxage)
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

-- abandon records that a lease ended unsettled at that time. The lease is no longer in
-- k.leases.
local function abandon(k, l, ended)
  local last = k.abandoned
  l.number, l.ends, l.place = (last and last.number or 0) + 1, ended, 0
  l.as, l.inherits, l.saved = nil, l.saved == 1 and l.fence or last and last.inherits or 0, 0
  k.abandoned, k.changed, k.freed = l, true, true
  if l.once == 1 then notify(k, 0) end
end

-- clean deletes the abandoned row.
local function clean(k)
  k.abandoned, k.changed, k.freed = nil, true, true
end

-- finish ends a lease cleanly, together with all places at its number. The lease is no
-- longer in k.leases.
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

-- advance ends what has expired by now.
local function advance(k)
  local live, over = {}, {}
  for _, l in ipairs(k.leases) do
    local list = l.ends > now and live or over
    list[#list + 1] = l
  end
  k.leases = live
  table.sort(over, function(a, b) return a.ends < b.ends end)
  for _, l in ipairs(over) do abandon(k, l, l.ends) end
  if k.abandoned and k.abandoned.once == 0 and k.abandoned.ends + MEMORY <= now then clean(k) end
end

-- keep writes the key's record, and wakes the waiters that it can answer.
local function keep(k, token, print, retention, data)
  call('SET', k.r, record_of(token, print, retention, data), 'PX', ceil(retention / 1000))
  notify(k, 1)
end

-- each calls f for every element without an answer. An error becomes the element's
-- answer.
local function each(answers, count, f)
  for i = 1, count do
    if not answers[i] then
      local ok, answer = pcall(f, i)
      if not ok then answer = failed(type(answer) == 'table' and answer.err or answer) end
      answers[i] = answer
    end
  end
  finished(mark, given)
  return answers
end

-- forced calls f for each key, whichever token holds it. f returns the element's answer.
local function forced(f)
  return each({}, #KEYS - 2, function(i)
    affirm()
    local k = open(KEYS[i + 2])
    advance(k)
    local answer = f(k)
    close(k)
    return answer
  end)
end
