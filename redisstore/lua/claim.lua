-- claim answers claims.
--
-- KEYS  the fence, then the state of each key; on a cluster also the records of
--       those that one can answer: while their slot is moved, state and record can
--       be on two servers, and a claim that names both is told to try again
-- ARGV  channel, tells, sharded, most waiters; then for each claim two: the claim
--       and how long (ms, in digits) its state is to be kept. A claim is 1 byte
--       flags, 1 byte mode, 1 byte at most once, 4 bytes permits, 8 bytes each
--       TTL, place and max age (µs), 16 bytes token, 16 bytes redeems, 32 bytes
--       fingerprint, and the owner; zero bytes stand for none. A claim that has a
--       hold has no use for one of the times, and that is where the hold is: the TTL
--       of one that reserves, the place of one that redeems. Of the flags, 1 is
--       for a claim that takes or waits for the key and redeems no place, and 2
--       for one that a record can answer.
--
-- Each is answered by the fence when it is the first attempt and is granted, and
-- otherwise by an array that begins with its state (dibs.State):
--   granted   1, fence, number, progress or nil
--   held      2, left, ahead, queued, idle, a fence that no grant so far is above
--   free      3
--   done      4, data, age, left
--   mismatch  5
--   permits   6, permits
--   unknown   7, token
--   failed    0, why; or 0 alone when the queue is full

local channel, tells, sharded, most = ARGV[1], ARGV[2] + 0, ARGV[3] == '1', ARGV[4] + 0
local FIRST, EACH = 4, 2
local COUNT = (#ARGV - FIRST) / EACH
local SIMPLE, ANSWERABLE = 1, 2
local TRY, QUEUED, RESERVE, LOOK = 0, 1, 2, 3
local GRANTED, HELD, FREE, DONE, MISMATCH, DIFFERS, UNKNOWN = 1, 2, 3, 4, 5, 6, 7

local mark = highest()
local given = mark

-- The short way to a key of which nothing is known.
local answers, rest = {}, 0
local pcall_redis, unpack_struct, pack_struct = redis.pcall, struct.unpack, struct.pack
for i = 1, COUNT do
  local a = FIRST + EACH * (i - 1)
  local claim, name = ARGV[a + 1], KEYS[i + 1]
  local flags, _, _, _, ttl = unpack_struct('>BBBI4I8', claim)
  local done = false
  if flags == SIMPLE or flags > SIMPLE and pcall_redis('EXISTS', sub(name, 1, -2) .. 'r') == 0 then
    local fence = max(given + 1, now)
    done = pcall_redis('SET', name,
      pack_struct('>BI8I8I8', VERSION, fence, now, now + ttl) .. claim, 'NX', 'PX', ARGV[a + 2])
    if done and done.ok then given, done = fence, fence end
  end
  if type(done) == 'table' then done = false end -- the long way tells why, if it is so there
  if not done then rest = rest + 1 end
  answers[i] = done
end
if rest == 0 then
  pcall_redis('SET', KEYS[1], string.format('%.0f', given))
  return answers
end

--@key.lua

-- past returns a fence that no grant before now is above, also none that was lost
-- with the data.
local function past()
  return max(given, now - 1)
end

-- granted answers a holder.
local function granted(k, h)
  if h[INHERITS] == 1 then
    return { GRANTED, h[FENCE], h[NUMBER], call('HGET', k.p, 'i') }
  end
  return { GRANTED, h[FENCE], h[NUMBER] }
end

-- before returns how many places come before p, or are there if it is nil.
local function before(k, p)
  local n = 0
  for _, f in ipairs(k.fallen or {}) do
    if not p or f[P_ORDER] < p[P_ORDER] then n = n + 1 end
  end
  if k.st[QUEUE] == 0 then return n end
  return n + (p and call('ZCOUNT', k.q, '-inf', '(' .. order(p)) or call('ZCARD', k.q))
end

-- waits answers one whose turn has not come and who has the place p, or none; by is
-- the lease that has taken it, if one has.
local function waits(k, p, by)
  local st = k.st
  local ahead = before(k, p)
  local ends
  for _, h in ipairs(st[HOLDERS]) do
    ends = min(ends or h[ENDS], h[ENDS])
  end
  for _, f in ipairs(k.fallen or {}) do
    ends = min(ends or f[P_ENDS], f[P_ENDS])
  end
  local those = ahead > 0 and call('ZRANGE', k.q, 0, min(ahead, LOOKED) - 1) or {}
  if #those > 0 then
    for _, v in ipairs(call('HMGET', k.w, spread(those))) do
      local e = v and unpack(v)[P_ENDS]
      if e and e > now then ends = min(ends or e, e) end
    end
  end
  ends = ends or p and p[P_ENDS] or now
  -- Whoever is the first where a permit is free is there for others: it is reserved.
  local idle = not by and ahead > 0 and #st[HOLDERS] < st[PERMITS]
  return { HELD, max(ends - now, 0), ahead, p and 1 or 0, idle and 1 or 0, past() }
end

-- refuses answers what is not for want of its turn. That the key is offered to the
-- token itself is no clash.
local function refuses(k, permits, print, maxage, token)
  local st = k.st
  if agreed(k) and st[PERMITS] ~= permits then return { DIFFERS, st[PERMITS] } end
  for _, h in ipairs(st[HOLDERS]) do
    if h[TOKEN] ~= token and differs(h[PRINT], print) then return { MISMATCH } end
  end
  if st[LOST] and differs(st[LOST][PRINT], print) then return { MISMATCH } end
  if maxage > 0 then
    local r = record(k)
    if r and now - r.written <= maxage then
      if differs(r.print, print) then return { MISMATCH } end
      return { DONE, r.data, max(now - r.written, 0), r.ends - now } -- the clock may have been set back
    end
  end
  if unknown(st) then return { UNKNOWN, st[LOST][TOKEN] } end
end

-- full reports whether too many wait. Places that have run out do not count,
-- but only some of them are looked at.
local function full(k)
  if call('ZCARD', k.q) < most then return false end
  local tokens = call('ZRANGE', k.q, 0, MANY - 1)
  for i, v in ipairs(call('HMGET', k.w, spread(tokens))) do
    if not v or ended(v) then remove_place(k, tokens[i]) end
  end
  return call('ZCARD', k.q) >= most
end

-- last and front return the order of a new place at the end and at the front.
local function last(k)
  return max((call('ZRANGE', k.q, -1, -1, 'WITHSCORES')[2] or 0) + 1, now)
end

local function front(k)
  return (call('ZRANGE', k.q, 0, 0, 'WITHSCORES')[2] or now) - 1
end

-- standing returns a token's place without touching it.
local function standing(k, token)
  for _, p in ipairs(k.fallen) do
    if p[P_TOKEN] == token then return p end
  end
  local v = call('HGET', k.w, token)
  local p = v and unpack(v)
  return p and p[P_ENDS] > now and p[P_PARKED] == 0 and p or nil
end

-- look answers what Try would find, and changes nothing but its own copy of the
-- state. What has run out may go.
local function look(k, c)
  local st = k.st
  local live = {}
  k.fallen = fallen(st)
  for _, h in ipairs(st[HOLDERS]) do
    if h[ENDS] > now then
      if h[TOKEN] == c.token then return { FREE } end
      live[#live + 1] = h
    elseif h[OFFERED] == 0 and not (st[LOST] and st[LOST][ENDS] > h[ENDS]) then
      st[LOST] = h
    end
  end
  st[HOLDERS] = live
  if st[LOST] and st[LOST][ONCE] == 0 and st[LOST][ENDS] + MEMORY <= now then st[LOST] = false end
  local ahead
  if st[QUEUE] > 0 then ahead = select(2, first(k)) end
  for _, p in ipairs(k.fallen) do
    if not ahead or p[P_ORDER] < ahead[P_ORDER] then ahead = p end
  end
  st[QUEUE] = ahead and ahead[P_ENDS] or 0
  k.inuse = #live > 0 or ahead ~= nil
  local answer = refuses(k, c.permits, c.print, c.maxage, c.token)
  if answer then return answer end
  local from, by, p = c.from, taken(st, c.from), standing(k, c.from)
  if c.redeems and not by and not (p and p[P_RESERVED] == 1) then
    from, by, p = c.token, taken(st, c.token), standing(k, c.token)
  end
  if by then return waits(k, by[PLACE], by) end
  if not k.inuse or #live < st[PERMITS] and (not ahead or ahead[P_TOKEN] == from) then return { FREE } end
  return waits(k, p)
end

-- adopt makes a place what the claim asks for.
local function adopt(k, p, c)
  if c.mode ~= TRY or c.stands > 0 then
    p[P_ENDS], p[P_STANDS], p[P_PRESSED] = now + c.stands, c.stands, nil
  end
  if c.mode ~= TRY then
    p[P_HOLD] = c.hold
    p[P_PRINT], p[P_ONCE], p[P_OWNER], p[P_MAXAGE] = c.print, c.once, c.owner, c.maxage
    p[P_RESERVED] = c.mode == RESERVE and 1 or 0
    if c.maxage > 0 and k.st[LOCKS] then k.st[LOCKS], k.changed = nil, true end
    -- What must not be done twice waits until it is known that it was heard.
    p[P_TELLS] = c.once == 0 and tells or 0
  end
  if c.mode ~= RESERVE then
    p[P_CHANNEL], p[P_CALLED] = channel, 0
  end
end

-- seeks notes a claim from a place that a lease has taken.
local function seeks(p, c)
  if c.stands > 0 then p[P_STANDS] = c.stands end
  if c.mode == RESERVE then
    p[P_HOLD] = c.hold
  else
    p[P_CHANNEL], p[P_CALLED] = channel, 0
  end
end

-- press makes a reserved place whose turn has come, and which is in somebody's way
-- now, run out after its hold.
local function press(k, token, p)
  if p[P_RESERVED] == 0 or not p[P_HOLD] or p[P_PRESSED] then return end
  p[P_ENDS], p[P_PRESSED] = min(p[P_ENDS], now + p[P_HOLD]), true
  write_place(k, token, p)
end

-- again answers a token that holds the key.
local function again(k, h, c)
  if c.mode == RESERVE then -- whoever holds the key has no use for a place
    return { HELD, h[ENDS] - now, 0, 0, 0, past() }
  end
  h[ENDS], k.changed = now + c.ttl, true
  return granted(k, h)
end

-- offered answers a token to which the key is offered; answer is what keeps it
-- from it, if anything does.
local function offered(k, h, at, c, answer)
  local st = k.st
  k.changed = true
  if answer and answer[1] == UNKNOWN then return answer end
  if not answer and c.mode ~= RESERVE then
    h[OFFERED], h[ENDS], h[PRINT], h[ONCE], h[OWNER] = 0, now + c.ttl, c.print, c.once, c.owner
    st[LOST] = false
    return granted(k, h)
  end
  table.remove(st[HOLDERS], at)
  if not answer then -- it wants to be asked later
    local p = { 0, 0, 0, '', 0, '', '', 0, 1, 0, front(k), 0, c.token }
    adopt(k, p, c)
    insert_place(k, c.token, p)
    return waits(k, p)
  end
  hand_over(k)
  return answer
end

-- decide answers a claim that is more than a look.
local function decide(k, c)
  local st = k.st
  advance(k)
  local h, at = holder(st, c.token)
  if h and h[OFFERED] == 0 then return again(k, h, c) end
  if not agreed(k) then st[PERMITS] = c.permits end
  local answer = refuses(k, c.permits, c.print, c.maxage, c.token)
  if h then return offered(k, h, at, c, answer) end
  local by = taken(st, c.from)
  if answer then
    if answer[1] == DONE or answer[1] == MISMATCH then -- it has its answer
      if place(k, c.token) then remove_place(k, c.token) end
      local p = c.redeems and not by and place(k, c.from)
      if p and p[P_RESERVED] == 1 then remove_place(k, c.from) end
      hand_over(k)
    end
    return answer
  end
  local p = not by and place(k, c.from)
  if c.redeems and not by and not (p and p[P_RESERVED] == 1) then -- it is as none
    c.redeems, c.from = false, c.token
    by, p = taken(st, c.token), place(k, c.token)
  end
  if by then
    seeks(by[PLACE], c)
    k.changed = true
    return waits(k, by[PLACE], by)
  end

  local ahead, foremost
  if c.mode ~= RESERVE and st[QUEUE] > 0 then ahead, foremost = first(k) end
  if c.mode ~= RESERVE and #st[HOLDERS] < st[PERMITS] and (not ahead or ahead == c.from) then
    local g = grant(k, c.token, now + c.ttl, c.print, c.once, c.owner)
    st[LOST] = false
    if p then
      remove_place(k, c.from)
      if c.redeems then
        p[P_CALLED] = 1
        p[P_HOLD] = c.hold or p[P_HOLD]
        g[PLACE] = p
        local other = taken(st, c.token)
        if other then
          other[PLACE] = false
        elseif place(k, c.token) then
          remove_place(k, c.token)
        end
      end
    end
    hand_over(k)
    return granted(k, g)
  end
  if p then
    adopt(k, p, c)
    write_place(k, c.from, p)
    stand(k, p[P_ENDS])
  elseif c.mode ~= TRY then
    if full(k) then return { 0 } end
    p = { 0, 0, 0, '', 0, '', '', 0, 0, 0, last(k), 0, c.token }
    adopt(k, p, c)
    insert_place(k, c.token, p, true)
  end
  if ahead and #st[HOLDERS] < st[PERMITS] then press(k, ahead, foremost) end
  return waits(k, p)
end

return each(answers, COUNT, function(i)
  local a = FIRST + EACH * (i - 1)
  local _, mode, once, permits, ttl, stands, maxage, token, redeems, print =
    struct.unpack('>BBBI4I8I8I8c16c16c32', ARGV[a + 1])
  local c = {
    mode = mode, token = token, ttl = ttl, stands = stands, permits = permits, maxage = maxage, once = once,
    print = print == NOBODY and '' or print, owner = sub(ARGV[a + 1], CLAIM_OWNER), redeems = redeems ~= sub(NOBODY, 1, 16),
  }
  c.from = c.redeems and redeems or token
  if mode == RESERVE then c.hold = ttl > 0 and ttl or nil end
  if c.redeems then c.hold, c.stands = stands > 0 and stands or nil, 0 end
  local k = open(KEYS[i + 1])
  if c.mode == LOOK then return look(k, c) end
  local answer = decide(k, c)
  close(k)
  return answer
end)
