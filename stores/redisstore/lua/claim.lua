-- claim answers claims.
--
-- KEYS  the fence, the listed names, then the state of each key. On a cluster also the record
--       of each claim that a record can answer: while a slot is moved, state and record may be
--       on two servers, and the server refuses a call that names both.
-- ARGV  sharded, channel, MaxWaiters, 1 if replicas must have what answers; then the
--       claims, see state.lua
--
-- Each answer begins with the state:
--   granted   the fence; or 1, fence, number, progress if there is any
--   held      2, left, ahead, queued, an upper bound of the fences granted so far
--   free      3, queued
--   done      4, age, left, data
--   mismatch  5
--   unknown   6, token

local sharded, channel, max_places, replicated = ARGV[1] == '1', ARGV[2], ARGV[3] + 0, ARGV[4] == '1'
local FIRST, COUNT = 4, #ARGV - 4
local SIMPLE = 1 -- flags above it: a record can answer the claim

local mark = highest()
local given = mark

-- The fast path: a key without a state. Consecutive claims usually begin with the same
-- bytes, which are decoded once.
local answers, rest, listed = {}, 0, {}
local beginning, flags, times, ms, expires
for i = 1, COUNT do
  local claim, name = ARGV[FIRST + i], KEYS[i + 2]
  local b = sub(claim, 1, 14)
  if b ~= beginning then
    local f, once, ttl = unpack('>BBI8', b, 5)
    local kept = ceil((ttl + memory(once)) / 1000)
    beginning, flags, times, ms = b, f, pack('>I8I8', now, now + ttl), digits(kept)
    expires = (ttl >= MINUTE or once == 1) and digits(ceil(now / 1000) + kept)
  end
  if flags == SIMPLE or flags > SIMPLE and call('EXISTS', sub(name, 1, -2) .. 'r') == 0 then
    local fence = max(given + 1, now)
    local done = pcall_redis('SET', name, PLAIN .. pack('>I8', fence) .. times .. claim, 'NX', 'PX', ms)
    if done and done.ok then
      given, answers[i] = fence, fence
      if expires then listed[#listed + 1], listed[#listed + 2] = expires, name end
    end
  end
  if not answers[i] then rest = rest + 1 end -- the full path decides
end
if #listed > 0 then list(spread(listed)) end
if rest == 0 then
  finished(mark, given)
  return answers
end

--@key.lua

local function granted(k, l)
  local progress = l.inherits > 0 and call('HGET', k.p, digits(l.inherits))
  return pack('>BI8I8', GRANTED, l.fence, l.number) .. (progress and text(progress) or '')
end

-- held is the answer when the claim is not next. number is that of the claim's place, or
-- of the place that it is from. first is the place in front.
local function held(k, number, first)
  local ends, ahead
  for _, l in ipairs(k.leases) do ends = min(ends or l.ends, l.ends) end
  if first and not (number and first.place >= number) then
    ahead = max(1, call('ZCOUNT', k.q, digits(first.place), number and '(' .. digits(number) or '+inf'))
  end
  -- Also an upper bound of grants that were lost with the server's data.
  return pack('>BI8I8I8I8', HELD, (ends or now) - now, ahead or 0, number and 1 or 0, max(given, now - 1))
end

-- last returns the number for a new place, or nil when there are too many places. It
-- removes only some of the places that have ended.
local function last(k)
  local n = 0
  if call('ZCARD', k.q) >= max_places then
    walk(k, function()
      n = n + 1
      return n == MANY
    end)
    if call('ZCARD', k.q) >= max_places then return nil end
  end
  local number = max((call('ZRANGE', k.q, -1, -1, 'WITHSCORES')[2] or 0) + 1, now)
  for _, l in ipairs(k.leases) do number = max(number, l.place + 1) end
  return number
end

-- join gives a claim a place with that number. own is the place of its token. A new place
-- is refused when the server is out of memory.
local function join(k, c, own, number)
  c.ends, c.place, c.asked, c.channel = now + c.placettl, number, 0, channel
  if c.mode == RESERVE then c.asked, c.channel = now, '' end
  if own then affirm() end
  write_place(k, c)
  if not own or own.mode ~= c.mode then
    if own then call('ZREM', k.q, member(own)) end
    local done = pcall_redis('ZADD', k.q, digits(number), member(c))
    if type(done) == 'table' then -- the hash has no expiry yet
      call('HDEL', k.w, c.token)
      error(done, 0)
    end
  elseif c.ends <= k.queue then
    return
  end
  k.removed[c.token] = nil
  if c.ends > k.queue then k.queue, k.changed = c.ends + SLACK, true end
  local ms = ceil((k.queue - now) / 1000)
  call('PEXPIRE', k.q, ms)
  call('PEXPIRE', k.w, ms)
end

local function decide(k, c)
  advance(k)
  local first = front(k)
  if k.freed then
    serve(k)
    first = front(k)
  end
  local l = holder(k, c.token)
  if l then
    if c.mode == LOOK then return pack('>BI8', FREE, 0) end
    if c.mode ~= RESERVE then l.ends, l.as, k.changed = now + c.ttl, nil, true end
    return granted(k, l)
  end

  local own = place(k, c.token)
  local from = not own and c.from ~= NONE and place(k, c.from) or nil
  if from and from.mode ~= RESERVE then from = nil end
  local number = own and own.place or from and from.place
  local state, answer = refusal(k, c)
  if state then
    if own and state ~= UNKNOWN then remove(k, own) end -- the waiter has its answer
    if replicated and state == DONE then
      local _, left = unpack('>I8I8', answer)
      call('PEXPIRE', k.r, ceil(left / 1000)) -- a write, so that WAIT covers the record
    end
    return pack('>B', state) .. (answer or '')
  end

  if c.mode ~= RESERVE then
    local room = spare(k, c.permits) >= c.weight
    local behind = first and not (number and first.place >= number)
    if room and not behind and not (number and leased(k, number)) then
      if c.mode == LOOK then return pack('>BI8', FREE, number and 1 or 0) end
      return granted(k, grant(k, c, own, number, c.ttl))
    end
    if room and behind and first.mode == RESERVE and k.free == 0 then k.free, k.changed = now, true end
  end
  if c.mode == QUEUE or c.mode == RESERVE then
    number = number or last(k)
    if not number then return failed('QUEUEFULL the key has too many places') end
    join(k, c, own, number)
  end
  return held(k, number, first)
end

return each(answers, COUNT, function(i)
  local c = read(ARGV[FIRST + i])
  local k = open(KEYS[i + 2], c.mode == LOOK)
  local answer = decide(k, c)
  close(k)
  return answer
end)
